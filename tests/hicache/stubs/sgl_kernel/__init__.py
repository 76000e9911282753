"""Lets the SGLang server start on a CPU without a build of sgl-kernel: every operator is there and raises if called."""

__path__: list[str] = []


def __getattr__(name: str):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing_operator(*_args, **_kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in on this CPU")

    return missing_operator
