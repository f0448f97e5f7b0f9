"""How Sphinx makes the site: ``make docs``."""

from __future__ import annotations

import inspect

import click
import typer
from sphinx.application import Sphinx

import leakmeter
from leakmeter.cli import app as command_line

project = "leakmeter"
author = "The leakmeter authors"
release = version = leakmeter.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

html_theme = "furo"
html_title = f"leakmeter {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = html_show_sourcelink = False

myst_heading_anchors = 3
nb_execution_mode = "off"  # stored outputs are shown; a test executes notebooks

autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_mock_imports = ["flwr", "nvflare"]  # extras that the site can do without
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_use_ivar = True  # fields of dataclasses are listed once


def described(info: typer.models.CommandInfo) -> str:
    """One command in Markdown: what it does, its arguments and options."""
    command = typer.main.get_command_from_info(
        info, pretty_exceptions_short=False, rich_markup_mode=None
    )
    context = click.Context(command, info_name=f"leakmeter {command.name}")
    rows = []
    for param in command.params:
        value = param.make_metavar(context).removesuffix(" RANGE")
        if isinstance(param, click.Option):
            value = param.opts[0] if param.is_flag else f"{param.opts[0]} {value}"
        default = "required" if param.required else param.default
        meaning = getattr(param, "help", "").replace("*", r"\*")
        cells = [f"`{value}`", "" if default is None else f"{default}", meaning]
        rows.append(" | ".join(cell.replace("|", r"\|") for cell in cells))
    usage = " ".join(command.collect_usage_pieces(context))
    table = "\n".join(["argument or option | default | meaning", "---|---|---", *rows])
    about = inspect.cleandoc(command.help or "")
    return f"\n## {command.name}\n\n    leakmeter {command.name} {usage}\n\n{about}\n\n{table}\n"


def add_commands(_: Sphinx, docname: str, source: list[str]) -> None:
    """Let the command line describe itself on its page."""
    if docname == "commands":
        source[0] += "".join(map(described, command_line.registered_commands))


def skip_aliases(
    _: Sphinx, _kind: str, _name: str, member: object, skip: bool, _options: object
) -> bool:
    """Leave out what Python itself says about the fields of named tuples."""
    return skip or (member.__doc__ or "").startswith("Alias for field number")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_commands)
    app.connect("autodoc-skip-member", skip_aliases)
