"""The page: examinations to look at, in one HTML file, a notebook, or live (docs/page.md)."""

from attnworks.reports.page.contents import Contents, Exam, exam_contents, page_contents
from attnworks.reports.page.html import page_html, policy
from attnworks.reports.page.sentences import Sentence
from attnworks.reports.page.writing import notebook_frame, report

__all__ = [
    "Contents",
    "Exam",
    "Sentence",
    "exam_contents",
    "notebook_frame",
    "page_contents",
    "page_html",
    "policy",
    "report",
]
