"""Decode by one published method each, and provide what a method of your own is written with.

>>> from duodec.methods import Draft, Loop, Method, Request, serial
"""

from duodec.core.draft import Draft
from duodec.methods.loops import overlapped, serial
from duodec.methods.method import Method
from duodec.methods.request import Loop, Request

__all__ = ["Draft", "Loop", "Method", "Request", "overlapped", "serial"]
