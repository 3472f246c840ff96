# SPDX-License-Identifier: Apache-2.0
"""Frame times of a page: an order of 64 ranks x 512 micro-batches, zoomed and moved."""

CLUSTER = ["--cluster", "selene:nodes=8", "--cost", "F=10,I=10,W=10"]
LOAD = ["--load", "send=25MiB,stash=400MiB,fixed=20GiB,gradient=2GiB"]
SIZE = ["--ranks", "64", "--microbatches", "512"]
ORDER = ["schedule", "draw", "1f1b", *SIZE, *CLUSTER, *LOAD]
FRAMES = 240
PROGRAMS_JS = "tracks[0].ranks.reduce((a, l) => a + Array.from(l.spans.cls).filter((c) => l.kindOf[c] < 2).length, 0)"
# Zooms in and out around places, and moves; asks for a frame each time, and how long it took until the next.
FRAMES_JS = """new Promise((done) => {
  const times = [], n = %d;
  let i = 0, last = performance.now();
  function step() {
    const now = performance.now();
    times.push(now - last);
    last = now;
    if (i === n)
      return done(times.slice(1));
    if (i %% 60 < 25) zoom(0.88, END * (0.3 + 0.4 * ((i / 60 | 0) %% 2)));
    else if (i %% 60 < 35) pan(0.06);
    else zoom(1 / 0.88);
    ++i;
    draw();
    requestAnimationFrame(step);
  }
  requestAnimationFrame(step);
})"""


class Found:
    """times: milliseconds of frames, rising; work: milliseconds of all of the browser's processors in a frame."""

    def __init__(self, times, work):
        self.times, self.work = sorted(times), work

    def within(self, part):
        return self.times[int(part * len(self.times))]

    def share(self, most):
        return sum(t < most for t in self.times) / len(self.times)

    def text(self):
        return (f"95% of {len(self.times)} frames within {self.within(0.95):.1f} ms, half within {self.within(0.5):.1f} ms; "
                f"{self.work:.1f} ms of processors a frame")


def show_links(browser, shown):
    browser.run(f"if (links.checked !== {str(shown).lower()}) links.click()")
    browser.frame()


def measure(browser):
    """Times of the frames of the open page."""
    before = browser.processor_seconds()
    times = browser.run(FRAMES_JS % FRAMES)
    return Found(times, (browser.processor_seconds() - before) / FRAMES * 1e3)
