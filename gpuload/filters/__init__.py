"""Filters of codec pipelines, undone: on the host, and by kernels on a device."""
