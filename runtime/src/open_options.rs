//! How an artefact is opened.

use crate::{Model, OpenError, Prefault, TrustedKey, Weights, loader, map_file, seal::check_seal};
use std::{
    path::{Path, PathBuf},
    string::{String, ToString},
    vec::Vec,
};

/// How a shared object and its weights file are opened.
///
/// ```no_run
/// use symshape_runtime::{OpenOptions, Prefault};
///
/// let model = OpenOptions::new().weights("tuned.weights").prefault(Prefault::All).open("gpt2.so")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "nothing is opened before `open` is called"]
pub struct OpenOptions {
    weights: Option<PathBuf>,
    prefault: Prefault,
    verify: bool,
    trusted_keys: Vec<TrustedKey>,
}

impl OpenOptions {
    /// The options of [`Model::open`].
    pub fn new() -> OpenOptions {
        OpenOptions::default()
    }

    /// The weights file of the artefact. By default it is the one that was written with it, in the same folder.
    pub fn weights(mut self, path: impl Into<PathBuf>) -> OpenOptions {
        self.weights = Some(path.into());
        self
    }

    /// Whether all bytes are compared with the hashes in the files: those of the shared object before its code is
    /// mapped, those of the weights file before `open` returns. Only ELF files have such hashes; other shared libraries
    /// are refused.
    ///
    /// The files must not change while they are opened. False by default: the header, the size and the layout of a
    /// weights file are always checked, and the headers of a shared object.
    pub fn verify(mut self, verify: bool) -> OpenOptions {
        self.verify = verify;
        self
    }

    /// Requires signatures by this key, or by any key of several calls: `M.so.minisig` for the shared object `M.so`,
    /// and such a file for its weights file. Without a key, signatures are not read.
    ///
    /// The shared object is copied to sealed memory, and the copy is checked before its code is mapped. The weights
    /// file is copied as well, see [`Weights::open_signed`]. So both take memory of this process, and no change of the
    /// files has an effect on it.
    ///
    /// A shared object that needs other libraries is refused, because no signature covers their code. Systems other
    /// than Linux have no sealed memory, and refuse all.
    ///
    /// ```no_run
    /// use symshape_runtime::{OpenOptions, TrustedKey};
    ///
    /// let key = TrustedKey::read("minisign.pub")?;
    /// let model = OpenOptions::new().trusted_key(key).open("gpt2.so")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn trusted_key(mut self, key: TrustedKey) -> OpenOptions {
        self.trusted_keys.push(key);
        self
    }

    /// How much of both files is read when they are opened.
    pub fn prefault(mut self, prefault: Prefault) -> OpenOptions {
        self.prefault = prefault;
        self
    }

    /// Loads the shared object at `path`, which runs its code: open only files that you trust.
    ///
    /// # Errors
    /// As [`Model::open`]; with [`OpenOptions::verify`], also when a file is damaged; with
    /// [`OpenOptions::trusted_key`], also when a file has no valid signature.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Model, OpenError> {
        self.open_with(path, |_, _| {})
    }

    /// As [`OpenOptions::open`]. While pages are read, `progress(done, total)` gets the bytes of address space that are
    /// read and that will be.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn open_with(
        &self,
        path: impl AsRef<Path>,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Model, OpenError> {
        let path = path.as_ref();
        if self.verify {
            let failed = |reason: String| OpenError::Load { path: path.display().to_string(), reason };
            let file = map_file(path).map_err(|error| failed(error.to_string()))?;
            check_seal(&file).map_err(failed)?;
        }
        let is_signed = !self.trusted_keys.is_empty();
        let (desc, inside) =
            if is_signed { loader::load_signed(path, &self.trusted_keys)? } else { loader::load(path)? };
        let weights = match &self.weights {
            Some(weights) => Some(weights.clone()),
            None => desc.weights_name()?.map(|name| path.with_file_name(name)),
        };
        let mut model = Model::loaded(desc);
        if let Some(weights) = weights {
            let weights = if is_signed {
                Weights::open_signed(weights, &self.trusted_keys)?
            } else {
                Weights::open(weights)?
            };
            model = model.with_weights(weights)?;
        }
        if let Some(weights) = model.weights().filter(|_| self.verify) {
            weights.verify(|_, _| {})?;
        }
        if cfg!(target_os = "linux") {
            let weights = model.weights().map(Weights::bytes);
            loader::read_ahead(inside, weights, self.prefault, &mut progress);
        }
        Ok(model)
    }
}

impl Model {
    /// Loads the shared object at `path`, and its weights file if it has one: the file that was written with it, in the
    /// same folder.
    ///
    /// Loading runs the file's code in this process: open only files that you trust. On Linux, up to 256 MB of its
    /// pages are read once, so that the first call takes no longer than later ones. [`OpenOptions`] can read more, and
    /// can compare the files with their hashes first.
    ///
    /// # Errors
    /// When it cannot be loaded, or is not a symshape artefact of this version, or its weights file is missing, damaged
    /// or of another artefact.
    pub fn open(path: impl AsRef<Path>) -> Result<Model, OpenError> {
        OpenOptions::new().open(path)
    }

    /// As [`Model::open`], but reads as many pages of the files as `prefault` says. While it reads,
    /// `progress(done, total)` gets the bytes of address space that are read and that will be.
    ///
    /// ```no_run
    /// use symshape_runtime::{Model, Prefault};
    ///
    /// let model = Model::open_with("gpt2.so", Prefault::All, |done, total| {
    ///     eprintln!("{} of {} MB", done >> 20, total >> 20);
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn open_with(
        path: impl AsRef<Path>,
        prefault: Prefault,
        progress: impl FnMut(usize, usize),
    ) -> Result<Model, OpenError> {
        OpenOptions::new().prefault(prefault).open_with(path, progress)
    }
}
