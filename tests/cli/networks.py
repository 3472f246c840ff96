# SPDX-License-Identifier: Apache-2.0
"""Two machines made of one: networks of their own that reach nothing but each other, by one link. Each has its /sys, where UCX looks
interfaces up."""
import os
import subprocess

from command import COMMAND
from team_jobs import Launched, until

HOSTS = ("10.77.0.1", "10.77.0.2")
LINKS = ("opipe0", "opipe1")


def ip(machine, *words):
    subprocess.run([*machine.enter, "ip", *words], check=True, capture_output=True)


class Machine:
    """A network and mounts, held by a process that sleeps."""

    def __init__(self):
        self.holder = subprocess.Popen(["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c",
                                        "mount -t sysfs none /sys && ip link set lo up && echo ready && exec sleep 600"],
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.there = self.holder.stdout.readline() == "ready\n"
        self.enter = ["nsenter", "--target", str(self.holder.pid), "--net", "--mount", f"--wd={os.getcwd()}"]

    def close(self):
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()


class Machines:
    """Two; `there` is False without the right to make them."""

    def __init__(self):
        self.all = [Machine(), Machine()]
        self.there = all(machine.there for machine in self.all)
        if self.there:
            ip(self.all[0], "link", "add", "dev", LINKS[0], "type", "veth", "peer", "name", LINKS[1], "netns", str(self.all[1].holder.pid))
            for machine, link, host in zip(self.all, LINKS, HOSTS):
                ip(machine, "address", "add", host + "/24", "dev", link)
            self.up()

    def up(self):
        """The link, at both ends."""
        for machine, link in zip(self.all, LINKS):
            ip(machine, "link", "set", link, "up")
        for machine, link in zip(self.all, LINKS):
            shown = [*machine.enter, "ip", "link", "show", link]
            until(lambda shown=shown: "state UP" in subprocess.run(shown, capture_output=True, text=True, check=False).stdout, 5)

    def launch(self, port, *words, n=1, options=()):
        """One launch on each, of one job."""
        job = []
        for node, machine in enumerate(self.all):
            nodes = ["--nodes", "2", "--node", str(node), "--address", f"{HOSTS[0]}:{port}", *options]
            begin = [*machine.enter, COMMAND, "launch", "-n", str(n), *nodes, "--"]
            job.append(Launched(begin, n, *words, more={"ONNX_PIPE_TOKEN": "a token of these two machines"}))
        return job

    def close(self):
        for machine in self.all:
            machine.close()
