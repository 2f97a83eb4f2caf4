"""Configuration of the documentation site: `make docs`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

from neuraxis.version import __version__  # noqa: E402

project = "neuraxis"
author = "the neuraxis authors"
copyright = "the neuraxis authors, Apache-2.0"
release = __version__
version = ".".join(__version__.split(".")[:2])

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
    "programs",
    "reference",
    "gallery",
    "measurements",
    "notebook_files",
    "first_blocks",
]
exclude_patterns = ["_build", "_ext", "_templates", "README.md", "gallery/recorded"]
templates_path = ["_templates"]
html_static_path = ["_static"]
html_css_files = ["site.css"]

# Pages: MyST Markdown. A page with the header `file_format: mystnb` is a notebook; its cells are executed.
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "fieldlist", "substitution"]
myst_heading_anchors = 4
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / "notebooks")
nb_execution_timeout = 600
nb_execution_in_temp = True  # cells may write files
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_execution_show_tb = True

# The API reference: NumPy-style docstrings of public names.
autosummary_generate = True
autosummary_imported_members = True
autosummary_ignore_module_all = False
autodoc_typehints = "none"
autodoc_member_order = "bysource"
toc_object_entries_show_parents = "hide"  # the sidebar has no room for `Simulation.` before each method
napoleon_google_docstring = False
napoleon_use_rtype = False
default_role = "name"  # links the names that resolve; see docs/_ext/reference.py
html_math_renderer = "mathml"
smartquotes_action = "De"  # dashes and dots; quotation marks in docstrings are those of Python

# Links between projects need the network: only where it is asked for, so that the build works offline.
intersphinx_mapping = (
    {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
    }
    if os.environ.get("NEURAXIS_DOCS_ONLINE")
    else {}
)
linkcheck_anchors = False
linkcheck_timeout = 20

# Pages that are read elsewhere, such as downloaded notebooks, link to the site.
html_baseurl = "https://neuraxis.github.io/neuraxis/dev/"
# All published versions of the site read the list of versions from one address.
versions = os.environ.get("NEURAXIS_DOCS_VERSIONS", "_static/versions.json")

html_theme = "pydata_sphinx_theme"
html_title = f"neuraxis {version}"
html_show_sourcelink = False
html_theme_options = {
    "github_url": "https://github.com/neuraxis/neuraxis",
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 5,
    "navbar_align": "left",
    "show_version_warning_banner": True,
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "switcher": {"json_url": versions, "version_match": version},
    "check_switcher": False,
    "navbar_end": ["version-switcher", "theme-switcher", "navbar-icon-links"],
}
# Pages that belong to no section have nothing to list beside them.
html_sidebars = {page: [] for page in ("index", "comparison", "changelog", "cite")}
html_context = {"default_mode": "auto"}

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
