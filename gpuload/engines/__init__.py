"""Engines: who decodes a batch. One contract (`base`), one module an engine."""
