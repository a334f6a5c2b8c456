"""The local stack and the demo: servers that a newcomer and the tests need, and semel does not.

A package beside the library, with its own wheel. It adds `semel up`, `down`, `status` and `demo` to
the command line; the library imports nothing of it.
"""
