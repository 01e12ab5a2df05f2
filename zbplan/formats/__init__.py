"""Formats of others: PyTorch's schedule CSV, and Chrome trace events, which Perfetto reads too."""
