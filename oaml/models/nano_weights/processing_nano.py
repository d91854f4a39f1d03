"For transformers: the processor is in oaml."
from oaml.models.nano import NanoProcessor
