"The open, notebook-first machine-learning engine for GUI agents."
__version__ = "0.1.0"
