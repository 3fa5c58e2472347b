"""Text, tables, pages and figures of what others computed."""
