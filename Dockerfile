# `oaml demo` as a plain user, on PyTorch's CPU build:
#   docker build -t oaml . && docker run --rm -v "$PWD/runs:/home/person/runs" oaml
# The report is runs/demo/report.html; any other command stands behind the image's name, as in `docker run --rm oaml oaml --help`.
FROM python:3.11-slim
RUN useradd --create-home person
USER person
WORKDIR /home/person
ENV PATH=/home/person/.local/bin:$PATH
COPY --chown=person:person . oaml
RUN pip install --user --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu -c oaml/constraints.txt "./oaml[train]" \
    && rm -r oaml
CMD ["oaml", "demo"]
