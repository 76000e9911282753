"""Probes of a running SGLang server: does what the storage gives back equal what the device had?"""
