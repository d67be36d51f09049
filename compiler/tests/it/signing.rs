//! Signatures: a file without a valid one is refused before its code is mapped, and later changes have no effect.

use crate::{
    cli::{BLOCK, json, refusal, symc},
    random_cases::Random,
};
use minisign::{KeyPair, PublicKeyBox, SignatureBox};
use std::{
    fs,
    io::Cursor,
    path::{Path, PathBuf},
};
use symshape_runtime::{Context, Model, OpenOptions, TensorRef, TrustedKey, Weights, check_signature};

const DIMS: [&str; 4] = ["--dim", "N=1..4", "--dim", "S=1..9"];

/// A key pair and signatures of the text `test\n`, all written by the program minisign 0.11.
const PUBLIC_KEY: &str = "untrusted comment: minisign public key 87267429B4058CAF
RWSvjAW0KXQmh4/neoLA8EoTg9d2Yiyh1sCSXJxjESFtv2vYDIueZjPE
";
const SECRET_KEY: &str = "untrusted comment: minisign encrypted secret key
RWQAAEIyAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAr4wFtCl0Jofv12iWqiUc7KfsgoSgNejmrQWK/uUfkSG5VGz5MLIyqI/neoLA8EoTg9d2Yiyh1sCSXJxjESFtv2vYDIueZjPEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=
";
const SIGNATURE: &str = "untrusted comment: signature from minisign secret key
RUSvjAW0KXQmh4/zankNHm8IuZQHJyQBU07vcyyVUbiDYNJN9wdX00BjC+g0Z/ZgjiA7MH1NwtAizzgmoLAZU/AgvyEExwUang4=
trusted comment: a trusted comment
36AWLpBGN14aa/mfVLWt8QpQN9r4OFpoYh8FItnQ+zmqfFc2uIaQJeVKGxnoN+nKmUmuPTbXR/Q7GvSbLOUVDw==
";
/// Without a hash of the text, as older versions wrote it.
const LEGACY_SIGNATURE: &str = "untrusted comment: signature from minisign secret key
RWSvjAW0KXQmh/Wrh9PtMdhkjacpabRqnKuLQvTVrdhTZ17PygHiH29ZBOObBOcamQUm8aRASXLuAQ8rYRSO/sZX3BVADQUoKAE=
trusted comment: legacy
FO964as+b0OJVx9P04xC5jC30myfzMFGNWe2WEgf0gKQO/4KuBTBPXXqy0wtqsNmd9g53TsB+dn42m/A9iL8Cg==
";
/// Another key of the same program.
const OTHER_KEY: &str = "RWR49SGUsDF4gKF7DPIJtJ5tsjY8Dd8EnvbTA+y7O5u2TdQUEV1xshxn";

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().expect("UTF-8").to_string()
}

/// The block as a shared object and a weights file, both signed, and the paths of the two halves of the key.
struct Signed {
    folder: tempfile::TempDir,
    so: String,
    weights: String,
    secret: String,
    public: String,
}

fn signed() -> Signed {
    let folder = tempfile::tempdir().expect("a folder");
    let [so, weights, secret, public] =
        ["block.so", "block.weights", "release.key", "release.pub"].map(|name| path(folder.path(), name));
    json(&[&["compile", BLOCK, "-o", &so, "--weights-file", &weights][..], &DIMS].concat());
    json(&["sign", "--generate", "--no-password", "--secret-key", &secret]);
    let lines = json(&["sign", &so, "--secret-key", &secret]);
    let signatures: Vec<&str> = lines.iter().filter_map(|line| line["signature"].as_str()).collect();
    assert_eq!(signatures, [format!("{so}.minisig"), format!("{weights}.minisig")]);
    Signed { folder, so, weights, secret, public }
}

fn trusting(key: &str) -> OpenOptions {
    OpenOptions::new().trusted_key(TrustedKey::from_argument(key).expect("a key"))
}

/// The error of opening a file, which it names.
fn open_error(options: &OpenOptions, so: &str, named: &str) -> String {
    let error = options.open(so).expect_err("refused").to_string();
    assert!(error.starts_with(named), "{error}");
    error
}

fn result(model: &Model) -> Vec<f32> {
    let rows: Vec<usize> =
        model.inputs()[0].dims().iter().skip(2).map(|dim| dim.parse().expect("a size")).collect();
    let shape = [&[2, 3][..], &rows].concat();
    let x: Vec<f32> = (0..shape.iter().product()).map(|at: usize| (at % 17) as f32 / 16.0).collect();
    let mut context = Context::new(model).expect("a context");
    let outputs = context.run_views(&[TensorRef::new(&shape, &x).expect("a tensor")]).expect("runs");
    outputs.get(0).elems::<f32>().expect("floats").to_vec()
}

#[test]
fn signed_files_open_and_later_changes_have_no_effect() {
    let Signed { folder: _folder, so, weights, public, .. } = signed();
    let expected = result(&Model::open(&so).expect("opens"));
    let model = trusting(&public).verify(true).open(&so).expect("signed");
    for file in [&so, &weights] {
        // In place, as a process with a right to write would.
        let bytes = fs::metadata(file).expect("there").len();
        fs::write(file, vec![0xcc; bytes as usize]).expect("written");
    }
    assert_eq!(result(&model), expected);
    open_error(&trusting(&public), &so, &so);
}

#[test]
fn several_signed_models_are_open_at_once() {
    let Signed { folder, so, public, secret, .. } = signed();
    let other = path(folder.path(), "other.so");
    json(&[&["compile", BLOCK, "--name", "other", "-o", &other][..], &DIMS].concat());
    json(&["sign", &other, "--secret-key", &secret]);
    for _ in 0..3 {
        let first = trusting(&public).open(&so).expect("signed");
        let second = trusting(&public).open(&other).expect("signed");
        assert_eq!([first.name(), second.name()], ["block", "other"]);
        drop(first);
        let again = trusting(&public).open(&so).expect("signed");
        assert_eq!(result(&again), result(&second));
    }
}

#[test]
fn files_without_a_valid_signature_are_refused_by_name() {
    let Signed { folder, so, weights, secret, public } = signed();
    let other = path(folder.path(), "other.key");
    json(&["sign", "--generate", "--no-password", "--secret-key", &other]);
    for file in [&so, &weights] {
        let signature = format!("{file}.minisig");
        let good = fs::read(&signature).expect("there");
        fs::remove_file(&signature).expect("removed");
        assert!(open_error(&trusting(&public), &so, file).contains("it has no signature"), "missing");

        json(&["sign", file, "--secret-key", &other]);
        let by_other = fs::read(&signature).expect("there");
        if file == &so {
            // Signing an artefact signs its weights file.
            json(&["sign", &weights, "--secret-key", &secret]);
        }
        let error = open_error(&trusting(&public), &so, file);
        assert!(error.contains("by a key that is not trusted"), "{error}");
        let output = symc(&["verify", file, "--public-key", &public]);
        assert_eq!(output.status.code(), Some(1));
        fs::write(&signature, &good).expect("written");
        json(&["verify", file, "--public-key", &public]);
        assert_ne!(by_other, good);
    }
    // One of several keys is enough.
    let other = TrustedKey::read(path(folder.path(), "other.pub")).expect("a key");
    trusting(&public).trusted_key(other).open(&so).expect("signed");
    // The signature of one file is not that of another.
    fs::copy(format!("{weights}.minisig"), format!("{so}.minisig")).expect("copied");
    assert!(open_error(&trusting(&public), &so, &so).contains("does not match"), "of another file");
}

#[test]
fn every_change_of_a_signed_file_or_of_its_signature_is_refused() {
    let Signed { folder: _folder, so, weights, public, .. } = signed();
    let key = [TrustedKey::read(&public).expect("a key")];
    let mut random = Random(285);
    for file in [&so, &weights] {
        let mut bytes = fs::read(file).expect("there");
        let check = |bytes: &[u8]| check_signature(Path::new(file), bytes, &key);
        check(&bytes).expect("signed");
        for _ in 0..300 {
            let at = random.below(bytes.len());
            let bit = 1 << random.below(8);
            bytes[at] ^= bit;
            check(&bytes).expect_err("changed");
            check(&bytes[..at]).expect_err("truncated");
            bytes[at] ^= bit;
        }

        let signature = PathBuf::from(format!("{file}.minisig"));
        let good = fs::read(&signature).expect("there");
        let untrusted = good.iter().position(|byte| *byte == b'\n').expect("lines") + 1;
        for at in untrusted..good.len() - 1 {
            let mut bad = good.clone();
            bad[at] ^= 1 << random.below(8);
            fs::write(&signature, &bad).expect("written");
            let accepted = check(&bytes);
            assert!(accepted.is_err(), "byte {at} as {:?}: {accepted:?}", char::from(bad[at]));
            fs::write(&signature, &good[..at]).expect("written");
            // The comment of the last line may end anywhere, but not the signature of it.
            assert!(check(&bytes).is_err(), "{at} bytes");
        }
        fs::write(&signature, &good).expect("written");
    }
    trusting(&public).open(&so).expect("signed");
}

#[test]
fn signatures_of_the_program_minisign_are_accepted_and_the_reverse() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("test.txt");
    let signature = folder.path().join("test.txt.minisig");
    let keys: [TrustedKey; 1] = [PUBLIC_KEY.parse().expect("a key")];
    for (text, comment) in [(SIGNATURE, "a trusted comment"), (LEGACY_SIGNATURE, "legacy")] {
        fs::write(&signature, text).expect("written");
        assert_eq!(check_signature(&file, b"test\n", &keys).as_deref(), Ok(comment));
        check_signature(&file, b"test", &keys).expect_err("other text");
        let reason = check_signature(&file, b"test\n", &[OTHER_KEY.parse().expect("a key")]);
        assert!(reason.expect_err("another key").contains("by a key that is not trusted"));
    }

    let so = path(folder.path(), "block.so");
    json(&[&["compile", BLOCK, "-o", &so][..], &DIMS].concat());
    let secret = path(folder.path(), "minisign.key");
    fs::write(&secret, SECRET_KEY).expect("written");
    json(&["sign", &so, "--secret-key", &secret, "--comment", "release 7"]);
    let text = fs::read_to_string(format!("{so}.minisig")).expect("there");
    let signature = SignatureBox::from_string(&text).expect("a signature");
    let public = PublicKeyBox::from(PUBLIC_KEY.to_string()).into_public_key().expect("a key");
    let bytes = fs::read(&so).expect("there");
    // The library of rsign2 as reader.
    minisign::verify(&public, &signature, Cursor::new(&bytes), true, false, false).expect("accepted");
    assert_eq!(signature.trusted_comment().expect("a comment"), "release 7");
    let answer = json(&["verify", &so, "--public-key", PUBLIC_KEY.lines().nth(1).expect("a key")]);
    assert_eq!(answer[0]["trusted_comment"], "release 7");

    // The library of rsign2 as writer.
    let pair = KeyPair::generate_unencrypted_keypair().expect("a pair");
    let by_library = minisign::sign(None, &pair.sk, Cursor::new(&bytes), None, None).expect("signed");
    fs::write(format!("{so}.minisig"), by_library.to_bytes()).expect("written");
    trusting(&pair.pk.to_base64()).open(&so).expect("signed");
}

#[test]
fn other_weights_need_their_own_signature() {
    let Signed { folder, so, secret, public, .. } = signed();
    let tuned = path(folder.path(), "tuned.weights");
    json(&["weights", BLOCK, "--for", &so, "-o", &tuned]);
    let options = trusting(&public).weights(&tuned);
    assert!(open_error(&options, &so, &tuned).contains("it has no signature"));
    let key = [TrustedKey::read(&public).expect("a key")];
    Weights::open_signed(&tuned, &key).expect_err("no signature");
    json(&["sign", &tuned, "--secret-key", &secret]);
    options.open(&so).expect("signed");
    Weights::open_signed(&tuned, &key).expect("signed");
}

#[test]
fn damaged_files_and_other_files_are_not_signed() {
    let Signed { folder, so, weights, secret, .. } = signed();
    for (file, message) in [(&so, "is damaged"), (&weights, "damaged")] {
        let mut bytes = fs::read(file).expect("there");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(file, &bytes).expect("written");
        let error = refusal(&["sign", &so, "--secret-key", &secret]);
        assert!(error.starts_with(&format!("symc: {file}: ")) && error.contains(message), "{error}");
        bytes[middle] ^= 1;
        fs::write(file, &bytes).expect("written");
    }
    let text = path(folder.path(), "a.txt");
    fs::write(&text, "text").expect("written");
    let error = refusal(&["sign", &text, "--secret-key", &secret]);
    assert!(error.contains("it has no seal at its end"), "{error}");
}

#[test]
fn passwords_come_from_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let [so, secret, right, wrong] =
        ["block.so", "release.key", "right", "wrong"].map(|name| path(folder.path(), name));
    json(&[&["compile", BLOCK, "-o", &so][..], &DIMS].concat());
    fs::write(&right, "correct horse\n").expect("written");
    fs::write(&wrong, "battery staple\n").expect("written");
    let generate = ["sign", "--generate", "--secret-key", &secret, "--password-file", &right];
    let public = json(&generate)[0]["public_key"].as_str().expect("a key").to_string();
    assert!(refusal(&generate).contains("keys are never replaced"));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&secret).expect("there").permissions().mode() & 0o777, 0o600);
    }

    let error = refusal(&["sign", &so, "--secret-key", &secret, "--password-file", &wrong]);
    assert!(error.starts_with(&format!("symc: {secret}: Wrong password")), "{error}");
    json(&["sign", &so, "--secret-key", &secret, "--password-file", &right]);
    trusting(&public).open(&so).expect("signed");
}

/// The name of the public key is longer by two characters than that of the secret one, and than file systems allow.
#[test]
fn no_secret_key_is_left_without_its_public_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let secret = path(folder.path(), &format!("{}.k", "x".repeat(253)));
    let error = refusal(&["sign", "--generate", "--no-password", "--secret-key", &secret]);
    assert!(error.contains(".pub"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0, "{error}");
}

#[test]
fn other_files_than_keys_are_refused_with_a_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let so = path(folder.path(), "block.so");
    json(&[&["compile", BLOCK, "-o", &so][..], &DIMS].concat());
    let file = path(folder.path(), "key");
    let slow = {
        // The password of this key would take 2^60 operations.
        let pair = KeyPair::generate_encrypted_keypair(Some("p".into())).expect("a pair");
        let mut bytes = pair.sk.to_bytes();
        bytes[38..46].copy_from_slice(&(1_u64 << 60).to_le_bytes());
        let key = minisign::SecretKey::from_bytes(&bytes).expect("a key");
        key.to_box(None).expect("text").into_string()
    };
    let long = "x".repeat(1 << 17);
    for (text, as_public, as_secret) in [
        ("", "expected 56 characters of base64", "expected a comment and a line of base64"),
        ("untrusted comment: x\n", "expected 56 characters", "expected a comment and a line"),
        ("untrusted comment: x\n!!!!\n", "expected 56 characters", "its second line is not base64"),
        (PUBLIC_KEY, "", "it is a public key"),
        (SECRET_KEY, "it is a secret key", ""),
        (&slow, "it is a secret key", "its password would take too long to check"),
        (SIGNATURE, "it has more than one line after the comment", "it has another size"),
        (&long, "it has more than 65536 bytes", "it is not a short text"),
    ] {
        fs::write(&file, text).expect("written");
        if !as_public.is_empty() {
            let error = refusal(&["verify", &so, "--public-key", &file]);
            assert!(
                error.contains(&format!("--public-key: {file}: ")) && error.contains(as_public),
                "{error}"
            );
        }
        if !as_secret.is_empty() {
            let error = refusal(&["sign", &so, "--secret-key", &file]);
            assert!(error.starts_with(&format!("symc: {file}: ")) && error.contains(as_secret), "{error}");
        }
    }
    // The program minisign writes no checksum into keys without a password.
    fs::write(&file, SECRET_KEY.replace("qiUc7K", "AiUc7K")).expect("written");
    let error = refusal(&["sign", &so, "--secret-key", &file]);
    assert!(error.contains("the secret key is damaged"), "{error}");
    let error = refusal(&["verify", &so, "--public-key", "nowhere"]);
    assert!(error.contains("neither a public key of minisign in base64 nor a file"), "{error}");
    let error = refusal(&["sign", &so, "--secret-key", &file, "--comment", "two\nlines"]);
    assert!(error.contains("a trusted comment is one line"), "{error}");
}

#[test]
fn a_library_with_dependencies_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let [source, dependency, library] =
        ["empty.c", "libdependency.so", "library.so"].map(|name| path(folder.path(), name));
    fs::write(&source, "long symshape_model[64];\n").expect("written");
    let cc = |arguments: &[&str]| {
        let status = std::process::Command::new("cc").args(arguments).status().expect("a C compiler");
        assert!(status.success());
    };
    cc(&["-shared", "-nostdlib", "-o", &dependency, &source]);
    cc(&["-shared", "-nostdlib", "-Wl,--no-as-needed", "-o", &library, &source, &dependency]);
    let pair = KeyPair::generate_unencrypted_keypair().expect("a pair");
    let key = pair.pk.to_base64();
    for file in [&dependency, &library] {
        let bytes = fs::read(file).expect("there");
        let signature = minisign::sign(None, &pair.sk, Cursor::new(&bytes), None, None).expect("signed");
        fs::write(format!("{file}.minisig"), signature.to_bytes()).expect("written");
    }
    let error = open_error(&trusting(&key), &library, &library);
    assert!(error.contains("it needs the library ") && error.contains("libdependency.so"), "{error}");
    // Without dependencies it is loaded, but it has no descriptor.
    let error = trusting(&key).open(&dependency).expect_err("no artefact").to_string();
    assert!(error.starts_with("not a symshape artefact"), "{error}");
}
