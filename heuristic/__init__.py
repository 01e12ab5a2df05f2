"""Constructive schedules: built in milliseconds, always legal."""
