"For transformers: nano's classes are in oaml."
from oaml.nano.network import NanoConfig, NanoForCausalLM, NanoProcessor
