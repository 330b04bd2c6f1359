"""comparison_report.html: one file, its images inlined."""

import base64
import pathlib

TEMPLATE = "page.html.j2"


def render_page(title, machines, method_tables, sections, other_tables, plots):
    """`plots`: [(caption, path of a PNG)]. Raises ImportError without Jinja2."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent), autoescape=True,
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    images = [(caption, base64.b64encode(path.read_bytes()).decode()) for caption, path in plots]
    return environment.get_template(TEMPLATE).render(
        title=title, machines=machines, method_tables=method_tables, sections=sections,
        other_tables=other_tables, images=images)
