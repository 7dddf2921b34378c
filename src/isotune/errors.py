"""What a user can do wrong, said in one sentence with a remedy."""


class InputError(ValueError):
    """Bad input: the message names the value, what is allowed and what to do.

    The command line prints it alone and exits with code 2; nothing else is caught there,
    so a traceback always means a defect of isotune.
    """
