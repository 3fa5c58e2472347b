"""Errors and exit codes, whole files, package data, many tasks."""
