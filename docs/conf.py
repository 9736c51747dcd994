"""How the site is built: `make docs`. What can be generated is generated here, from the code itself."""

from __future__ import annotations

import sys
from html import escape
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from docutils import nodes
from matplotlib.figure import Figure
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util.logging import getLogger
from sphinx_gallery.scrapers import figure_rst

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from equation_links import connect  # noqa: E402  after its place is known
from execution import differences  # noqa: E402
from generated import TYPES, write_all  # noqa: E402
from inner_links import broken  # noqa: E402
from sharing import share_work  # noqa: E402
from sources import connect as connect_sources  # noqa: E402
from sources import forget_results_of_others, package_hash  # noqa: E402

from attnphase.explorer.page import ExplorePage  # noqa: E402

project, author = "attnphase", "the founders of attnphase"
release = version = installed("attnphase")

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "sphinx-mathjax-offline",
]
exclude_patterns = ["_build", "gallery", "gallery_pages/**.ipynb", "gallery_pages/**.py", "**.json", "**.zip", "**.md5"]
source_suffix = {".md": "myst-nb", ".rst": "restructuredtext"}

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
SOURCES = package_hash()
nb_execution_mode = "cache"  # of these sources of the package
nb_execution_cache_path = str(forget_results_of_others(SOURCES, HERE / "gallery_pages"))
nb_execution_raise_on_error = False  # a parallel build would hang; sphinx-build -W makes the warning an error
nb_execution_timeout = -1  # a slow machine is no error
nb_merge_streams = True
nb_render_markdown_format = "myst"

default_role = "py:obj"
smartquotes_action = "qe"  # two hyphens are an option's, and no dash
autodoc_typehints = "none"  # the docstrings have them, with shapes
autodoc_preserve_defaults = True  # REPLICA_SYMMETRIC, and not all that it holds
autodoc_member_order = "bysource"
autosummary_generate = True
numpydoc_show_class_members = False
numpydoc_xref_param_type = True
numpydoc_xref_aliases = TYPES
numpydoc_xref_ignore = "all"
nitpicky = True  # a reference that leads nowhere is a warning, and so an error
nitpick_ignore_regex = [("py:obj", r"[a-z][a-z_]*")]  # arguments, as docstrings name them


for page in (HERE / "gallery_pages").glob("plot_*"):  # of an earlier build, whose script has another name now
    if not (HERE / "gallery" / f"{page.name.partition('.')[0]}.py").exists():
        page.unlink()
EXPLORED = HERE / "_build" / "explored"  # pages that the gallery makes, next to the first page of the site
if not any(EXPLORED.glob("*.html")):  # the scripts that made them count as having been run
    for known in (HERE / "gallery_pages").glob("*.md5"):
        known.unlink()
EXPLORED.mkdir(parents=True, exist_ok=True)
FRAME = '<iframe class="explored" sandbox="allow-scripts" loading="lazy" title="{title}" src="{place}"></iframe>'


def figures_of(block: tuple[str, str, int], block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """What a block has made: figures, whether by pyplot or, as the package does, without it, and interactive pages."""
    del block
    named = [value for value in block_vars["example_globals"].values() if isinstance(value, Figure)]
    figures = list(dict.fromkeys([*(plt.figure(number) for number in plt.get_fignums()), *named]))
    # in this order, for the paths never end
    paths: list[Any] = [str(path) for _, path in zip(figures, block_vars["image_path_iterator"], strict=False)]
    for figure, path in zip(figures, paths, strict=True):
        figure.savefig(path, dpi=150)
    plt.close("all")
    rst = figure_rst(paths, gallery_conf["src_dir"])
    for page in (value for value in block_vars["example_globals"].values() if isinstance(value, ExplorePage)):
        name = f"{Path(block_vars['src_file']).stem.split('_', 2)[-1]}.html"
        page.save(EXPLORED / name, force=True)
        frame = FRAME.format(title=escape(page.title), place=f"../{name}")
        rst += f"\n.. raw:: html\n\n    {frame}\n\n"
    return rst


sphinx_gallery_conf = {
    "image_scrapers": (figures_of,),
    "capture_repr": (),
    "examples_dirs": ["gallery"],
    "gallery_dirs": ["gallery_pages"],
    "filename_pattern": r"/plot_",
    "abort_on_example_error": True,
    "parallel": True,  # as many scripts at once as sphinx-build is told with -j
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 3600,  # a time is that of the machine that built the site, and of what else ran there
    "write_computation_times": False,  # its page asks for a library that the site does not have
    "remove_config_comments": True,
    "within_subsection_order": "FileNameSortKey",
    "copyfile_regex": "",
}

html_theme = "pydata_sphinx_theme"
html_title = "attnphase"
html_static_path = ["_static"]
html_extra_path = ["_build/explored"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True, "show_toc_level": 2, "header_links_before_dropdown": 6}
html_context = {"default_mode": "auto"}  # light or dark as the reader's system; without it the first page says an error
html_show_sourcelink = False
html_copy_source = False
html_show_search_summary = False  # a browser fetches nothing for a page that was opened from a folder

# prompts are no part of a command that is copied
copybutton_prompt_text = "$ "

linkcheck_timeout = 20
linkcheck_anchors_ignore_for_url = [r"https://github\.com/"]  # made by scripts

intersphinx_mapping = write_all(HERE)
suppress_warnings = ["config.cache"]  # the gallery's settings hold a function, which is no reason to build anew


def with_own_number(app: Sphinx, doctree: nodes.document) -> None:
    """Leave equations with a number of their own as they are: Sphinx would put them where no number may stand."""
    del app
    for node in doctree.findall(nodes.math_block):
        if r"\tag" in node.astext():
            node["no-wrap"] = True
            node.children = [nodes.Text(rf"\[{node.astext()}\]")]


def run_blocks(app: Sphinx, docname: str, content: list[str]) -> None:
    """Run what a page shows when it is read, and with the first page the README; what differs is a warning."""
    if app.builder.format != "html":  # such as the check of links
        return
    pages = {f"docs/{docname}.md": content[0]}
    if docname == "index":
        pages["README.md"] = (HERE.parent / "README.md").read_text(encoding="utf-8")
    for page, text in pages.items():
        for line, said in differences(page, text):
            app.env.note_reread()  # the next build must say so again
            getLogger(__name__).warning("%s", said, location=f"{page}:{line}")


SOUGHT = ("replicon", "standard_error")  # a name of the field, and one that is written in two words


def search_finds(app: Sphinx, failure: Exception | None) -> None:
    """Refuse a site whose search does not know these words."""
    index = Path(app.outdir) / "searchindex.js"
    if failure is None and app.builder.format == "html":
        for word in SOUGHT:
            if f'"{word}":' not in index.read_text(encoding="utf-8"):
                raise ExtensionError(f"the site's search does not find {word}.")


def links_lead_somewhere(app: Sphinx, failure: Exception | None) -> None:
    """Refuse a site with a link, a picture or a frame that is not in it."""
    if failure is None and app.builder.format == "html":
        lost = [f"{page} leads to {link}" for page, link in broken(Path(app.outdir))]
        if lost:
            raise ExtensionError(f"the site has links that lead nowhere: {'; '.join(lost)}.")


def pictures_are_shown(app: Sphinx, failure: Exception | None) -> None:
    """Refuse a notebook that shows the name of a figure in its place, for want of ``%matplotlib inline``."""
    if failure is None and app.builder.format == "html":
        named = [page.name for page in Path(app.outdir).rglob("*.html") if "&lt;Figure size" in page.read_text("utf-8")]
        if named:
            raise ExtensionError(f"figures are not shown in {', '.join(sorted(named))}: begin with %matplotlib inline.")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.extensions["sphinx-mathjax-offline"].parallel_read_safe = True  # it copies files in the end
    app.connect("build-finished", search_finds)
    app.connect("build-finished", links_lead_somewhere)
    app.connect("build-finished", pictures_are_shown)
    app.connect("source-read", run_blocks)
    connect(app)
    connect_sources(app, SOURCES)
    share_work(app)
    app.connect("doctree-read", with_own_number)
