//! The request for a ragged batch.

/// The ragged batch that calls of a model are to take.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RaggedRequest {
    /// The symbol of the length of a sequence. `None` compiles the model as it is.
    pub length: Option<String>,
    /// The symbol of the batch; by default the one that is the first axis of inputs whose second axis is the length.
    pub batch: Option<String>,
    /// The input that is 1 for tokens and 0 for padding, of the shape `[batch, length]`; by default it is found.
    pub mask: Option<String>,
    /// The largest number of rows of a call; by default, all sequences of a call may have the largest length.
    pub max_rows: Option<u64>,
}

impl RaggedRequest {
    /// Sequences along the axis that this symbol names.
    pub fn along(length: impl Into<String>) -> RaggedRequest {
        RaggedRequest { length: Some(length.into()), ..RaggedRequest::default() }
    }

    /// Sets [`RaggedRequest::mask`].
    #[must_use]
    pub fn mask(self, mask: impl Into<String>) -> RaggedRequest {
        RaggedRequest { mask: Some(mask.into()), ..self }
    }

    /// Sets [`RaggedRequest::batch`].
    #[must_use]
    pub fn batch(self, batch: impl Into<String>) -> RaggedRequest {
        RaggedRequest { batch: Some(batch.into()), ..self }
    }

    /// Sets [`RaggedRequest::max_rows`].
    #[must_use]
    pub fn max_rows(self, max_rows: u64) -> RaggedRequest {
        RaggedRequest { max_rows: Some(max_rows), ..self }
    }
}
