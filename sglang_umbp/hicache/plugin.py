"""SGLang's plugin: makes `umbp` a word of --hicache-storage-backend.

SGLang calls register() in every process, before it reads the command line, and swallows what a plugin raises; the user
would be told only that the word is no choice. So nothing is raised here: a line on standard error says why.
"""

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any, get_type_hints

TESTED_SGLANG = ("0.5.23",)
_registered = False


def register() -> None:
    """Adds the word, the backend and the hooks, once a process; or adds nothing and says why on standard error."""
    global _registered
    if _registered:
        return
    try:
        problem = _register()
    except Exception as error:
        problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if problem:
        _complain(problem)
    _registered = True


def _register() -> str:
    """Empty, or why nothing was added."""
    from . import hooks

    choices = storage_backend_choices()
    differences = hooks.differences()
    if not isinstance(choices, list):
        differences.insert(0, "the choices of --hicache-storage-backend are not a list")
    if differences:
        return "; ".join(differences)
    hooks.install_hooks()
    if hooks.BACKEND_NAME not in choices:
        choices.append(hooks.BACKEND_NAME)
    return ""


def storage_backend_choices() -> Any:
    """The list that the flag's argparse argument is given; None if the flag or its list is not there."""
    from sglang.srt.server_args import ServerArgs

    hint = get_type_hints(ServerArgs, include_extras=True).get("hicache_storage_backend")
    lists = (getattr(part, "choices", None) for part in getattr(hint, "__metadata__", ()))
    return next((choices for choices in lists if choices is not None), None)


def _complain(problem: str) -> None:
    try:
        found = version("sglang")
    except PackageNotFoundError:
        found = "of an unknown version"
    print(
        f"sglang-umbp: --hicache-storage-backend umbp is not available: SGLang {found} differs from the tested "
        f"{', '.join(TESTED_SGLANG)}: {problem}",
        file=sys.stderr,
        flush=True,
    )
