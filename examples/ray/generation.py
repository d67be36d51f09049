"""A deployment of Ray Serve that streams the tokens of a decoder, each reply from a separate state.

    app = Generator.bind(publish("decoder.so"), capacity=1024)
    handle = serve.run(app).options(stream=True)
    for token in handle.remote([11, 7, 42], max_tokens=100, stop=[2]):
        print(token)
"""

from node_file import local
from ray import serve

# Replies of one replica at once; others wait.
MAX_REPLIES = 8


@serve.deployment(max_ongoing_requests=MAX_REPLIES)
class Generator:
    """Decodes with an artefact that `node_file.publish` has published. It was compiled with `--stateful`."""

    def __init__(self, published, capacity=None):
        import symshape

        self.model = symshape.load(str(local(published)))
        self.capacity = capacity

    def __call__(self, tokens, **options):
        """Yields tokens as they are chosen. The options are those of `symshape.generate`."""
        import symshape

        state = self.model.new_state(self.capacity)
        yield from symshape.generate(self.model, state, tokens, **options)
