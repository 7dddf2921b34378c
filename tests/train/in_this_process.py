"""An executor without processes, for tests that kill and compare."""

from isotune.sweep.training import Workbench


class InThisProcess:
    """Trains where it is asked, one segment at a time."""

    def __init__(self):
        self._workbench, self._ended = Workbench(), []

    def num_free(self):
        return 1 - len(self._ended)

    def submit(self, key, job):
        self._ended.append((key, self._workbench.train(job)))

    def poll(self, seconds):
        ended, self._ended = self._ended, []
        return ended

    def kill(self, key):
        pass

    def problem(self):
        return ""

    def close(self):
        pass
