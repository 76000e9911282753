"""Write the generated parts of README.md and docs/: settings, reasons, host pools and metrics, as the code has them.

`make docs` runs it; tests/test_readme.py compares. A part begins with `<!-- generated: NAME -->` and ends with
`<!-- end -->`.
"""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from sglang_umbp import Status
from sglang_umbp.hicache import extra_config
from sglang_umbp.hicache.host_pool_kinds import KINDS
from sglang_umbp.hicache.metrics import METRICS
from sglang_umbp.settings_report import readme_table, settings_table

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = (ROOT / "README.md", ROOT / "docs" / "troubleshooting.md", ROOT / "docs" / "sglang.md")
PART = re.compile(r"(<!-- generated: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def main(argv: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(description="Write the generated parts of the documentation.").parse_args(argv)
    for path in FILES:
        path.write_text(renewed(path.read_text()))
    return 0


def renewed(text: str) -> str:
    """The text with every generated part as the code has it now. Raises KeyError for an unknown part."""
    return PART.sub(lambda match: f"{match[1]}\n{_PARTS[match[2]]()}\n{match[4]}", text)


def reasons_table() -> str:
    """Every outcome of a key: number, name in logs and metrics, meaning."""
    lines = ["| number | name | in logs and metrics | meaning |", "|---|---|---|---|"]
    lines += [f"| {status.value} | `{status.name}` | `{status.reason}` | {status.description} |" for status in Status]
    return "\n".join(lines) + "\n"


def connector_settings_table() -> str:
    """What the SGLang connector can be told beside the pool's settings."""
    return settings_table(extra_config.ConnectorSettings, extra_config.about)


def host_pools_table() -> str:
    """Every class of SGLang's host pools that is stored, with the layouts of --hicache-mem-layout."""
    lines = ["| class | layouts |", "|---|---|"]
    for name, kind in KINDS.items():
        layouts = ", ".join(f"`{layout}`" for layout in kind.doors)
        lines.append(f"| `{name.rpartition('.')[2]}` | {layouts} |")
    return "\n".join(lines) + "\n"


def metrics_table() -> str:
    """Every metric of the SGLang connector: name, its own label, help."""
    lines = ["| metric | label | meaning |", "|---|---|---|"]
    lines += [f"| `{each.exposed_name}` | {each.label or '-'} | {each.help} |" for each in METRICS]
    return "\n".join(lines) + "\n"


_PARTS: dict[str, Callable[[], str]] = {
    "settings": readme_table,
    "reasons": reasons_table,
    "connector_settings": connector_settings_table,
    "host_pools": host_pools_table,
    "metrics": metrics_table,
}

if __name__ == "__main__":
    sys.exit(main())
