"""The page: examinations to look at, in one HTML file, a notebook, or live (docs/page.md)."""

from attnworks.page.contents import Contents, PageExam, exam_contents, page_contents
from attnworks.page.file import WrittenPage, notebook_frame, report
from attnworks.page.html import page_html, policy
from attnworks.page.sentences import PageSentence

__all__ = [
    "Contents",
    "PageExam",
    "PageSentence",
    "WrittenPage",
    "exam_contents",
    "notebook_frame",
    "page_contents",
    "page_html",
    "policy",
    "report",
]
