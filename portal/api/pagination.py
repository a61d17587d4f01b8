from __future__ import annotations

from rest_framework.pagination import CursorPagination


class Pages(CursorPagination):
    """Pages by cursor, newest first, stable while rows are added."""

    page_size = 50
    page_size_query_param = "page_size"
    max_page_size = 200
    ordering = "-id"
