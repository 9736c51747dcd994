"""Write the tables of ``schema.md`` anew, from the schema in the code."""

from pathlib import Path

from attnphase.data.tables import schema_markdown

PAGE = Path(__file__).with_name("schema.md")
END = "<!-- tables: end -->"


def updated(text: str) -> str:
    """Return the page with the tables of today's schema between its two marks."""
    begin = text.index("-->\n", text.index("<!-- tables: begin")) + len("-->\n")
    return f"{text[:begin]}\n{schema_markdown()}\n\n{text[text.index(END) :]}"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
