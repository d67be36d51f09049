"""A deployment of Ray Serve with dynamic batching: requests whose rows have equal shapes share a call.

    app = Predictor.bind(publish("block.so"))
    handle = serve.run(app)
    y = handle.remote(x).result()       # x: f32[rows, length, 64]
"""

from collections import defaultdict

import numpy as np
from node_file import local
from ray import serve

MAX_REQUESTS = 32


@serve.deployment(max_ongoing_requests=4 * MAX_REQUESTS)
class Predictor:
    """Calls an artefact that `node_file.publish` has published."""

    def __init__(self, published):
        import symshape

        self.model = symshape.load(str(local(published)))
        self.n_calls = 0

    @serve.batch(max_batch_size=MAX_REQUESTS, batch_wait_timeout_s=0.005)
    async def run(self, requests):
        """The result or the error of each request."""
        groups = defaultdict(list)
        for idx, x in enumerate(requests):
            groups[np.shape(x)[1:]].append(idx)
        results = [None] * len(requests)
        for members in groups.values():
            for idx, result in zip(members, self.call([requests[idx] for idx in members])):
                results[idx] = result
        return results

    def call(self, arrays):
        """One call for arrays whose rows have equal shapes. If it is refused, each array runs alone."""
        self.n_calls += 1
        try:
            y = self.model(np.concatenate(arrays))
        except Exception as error:
            if len(arrays) == 1:
                return [error]
            return [result for x in arrays for result in self.call([x])]
        ends = np.cumsum([len(x) for x in arrays])[:-1]
        return [part.copy() for part in np.split(y, ends)]

    async def __call__(self, x):
        result = await self.run(x)
        if isinstance(result, Exception):
            raise result
        return result

    def calls(self):
        """Number of calls of the model."""
        return self.n_calls
