"""What a user can do wrong or mend, said in one sentence with a remedy."""

import errno


class InputError(ValueError):
    """Bad input: the message names the value, what is allowed and what to do.

    The command line prints it alone and exits with code 2; nothing else is caught there,
    so a traceback always means a defect of isotune.
    """


def describe_os_error(error: OSError) -> str:
    """What the system refused: a disk that is full, a folder without permission, anything else; and what to do."""
    place = f" ({error.filename})" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"the disk is full{place}: free some space and repeat the same command; runs go on where they were"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"no permission{place}: choose another folder or change its permissions"
    return f"{error.strerror or error}{place}: mend that and repeat the same command; runs go on where they were"
