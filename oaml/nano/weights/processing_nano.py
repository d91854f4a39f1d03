"For transformers: the processor is in oaml."
from oaml.nano.model import NanoProcessor
