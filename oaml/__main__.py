"`python -m oaml` is the command `oaml`."
from .scripts.cli import main

main()
