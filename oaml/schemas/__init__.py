from . import actions  # noqa: F401, an action shows itself in the action language, whichever module is imported first
