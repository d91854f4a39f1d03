# Thin: every target calls .ci/dev.py, which also works without make (`python .ci/dev.py demo`), on Windows too.
PYTHON ?= $(shell command -v python3 || command -v python3.11 || command -v python)
.PHONY: demo test realapps export check setup readme wheel-check docs lab stale shape clean
demo test realapps export check setup readme wheel-check docs lab stale shape clean:
	@$(PYTHON) .ci/dev.py $@
