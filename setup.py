"Package metadata, read from settings.ini so that it is written once."
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

here = Path(__file__).parent
parser = ConfigParser(delimiters=["="])
parser.read(here/"settings.ini", encoding="utf-8")
cfg = parser["DEFAULT"]
extras = {name: cfg[f"{name}_requirements"].split()
          for name in ("train", "qlora", "notebook", "api", "browser", "realapps", "realapps_more", "mobile", "desktop", "ocr", "serve", "hf", "rl", "scale", "p2p", "export", "verifiers", "docs", "dev")}
extras["all"] = sorted({req for name, reqs in extras.items() if name not in ("dev", "verifiers") for req in reqs})  # verifiers wants openai<3

setup(
    version=cfg["version"], license="Apache-2.0", author=cfg["author"],
    author_email=cfg["author_email"], keywords=cfg["keywords"].split(),
    packages=[*find_packages(include=["oaml", "oaml.*"]), "oaml.ui.fonts", "oaml.apps.wordlists", "oaml.evals.manifests",
              "oaml.tasks.task_files", "oaml.nano.weights", "oaml.datasets.rft_samples"],  # the last six: data alone
    include_package_data=True,
    package_data={"oaml": ["py.typed", "ui/fonts/*", "apps/wordlists/*", "evals/manifests/*", "tasks/task_files/*", "datasets/rft_samples/*",
                           "nano/*.safetensors", "nano/weights/*", "viz/*.js", "viz/show.*", "**/*.yaml", "**/*.txt",
                           "prompt2policy/answers/*.json"]},
    install_requires=cfg["requirements"].split(), extras_require=extras,
    entry_points={"console_scripts": cfg["console_scripts"].split(), "nbdev": [f"{cfg['lib_path']}={cfg['lib_path']}._modidx:d"],
                  "oaml.devices": ["miniwob=oaml.miniwob.device", "realapp=oaml.realapps.catalog"],  # kinds of devices that `devices.catalog` has not itself
                  "oaml.models": ["nano=oaml.nano.model"]},         # models that have a name of their own
    long_description=(here/"README.md").read_text(encoding="utf-8") if (here/"README.md").exists() else cfg["description"],
    long_description_content_type="text/markdown", zip_safe=False,
)
