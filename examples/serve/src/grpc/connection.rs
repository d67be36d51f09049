//! A TCP connection that calls which come too late don't break.
//!
//! A client may answer the last ping of a server before it sends the frames of a call that it has started. The crate
//! `h2` (0.4.20) ignores all frames of such a call but WINDOW_UPDATE, which it takes for an error of the connection:
//! the calls that have begun then lose their results. [`Connection`] hides these frames.

use bytes::BytesMut;
use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_util::io::poll_read_buf;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 15;
/// Bytes that a client sends before its first frame.
const PREFACE_BYTES: usize = 24;
const HEADER_BYTES: usize = 9;

/// The types of frames (RFC 9113, section 6).
const HEADERS: u8 = 1;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
/// A type that no document defines; a receiver ignores its frames (section 4.1).
const UNKNOWN: u8 = 0xff;

/// The flag of a PING that answers another.
const ACK: u8 = 1;
/// The payload of the ping by which `h2` finds the last call of a connection.
const LAST_PING: [u8; 8] = [0x0b, 0x7b, 0xa2, 0xf0, 0x8b, 0x9b, 0xfe, 0x54];

/// A TCP connection whose frames are checked as they are read.
pub struct Connection {
    stream: TcpStream,
    frames: Frames,
    /// Bytes that have been read and not been taken.
    input: BytesMut,
    /// The bytes of `input` that may be taken.
    n_checked: usize,
}

impl Connection {
    pub fn new(stream: TcpStream) -> Connection {
        Connection { stream, frames: Frames::default(), input: BytesMut::new(), n_checked: 0 }
    }
}

/// The frames that a client sends.
struct Frames {
    /// Bytes before the next header.
    n_before: usize,
    /// The newest stream of a call.
    newest: u32,
    /// The newest stream when the last ping was answered: `h2` ignores newer ones.
    last: Option<u32>,
}

impl Default for Frames {
    fn default() -> Frames {
        Frames { n_before: PREFACE_BYTES, newest: 0, last: None }
    }
}

impl Frames {
    /// Hides window updates of calls that are too late. The result is the length of the checked part of `bytes`. The
    /// rest is part of a header, or of a ping; it is to be passed again with the bytes that follow it.
    fn check(&mut self, bytes: &mut [u8]) -> usize {
        let mut start = 0;
        loop {
            let n_passed = self.n_before.min(bytes.len() - start);
            self.n_before -= n_passed;
            start += n_passed;
            let Some((header, payload)) = bytes[start..].split_first_chunk_mut::<HEADER_BYTES>() else {
                return start;
            };
            let len = u32::from_be_bytes([0, header[0], header[1], header[2]]);
            let stream = u32::from_be_bytes([header[5] & 0x7f, header[6], header[7], header[8]]);
            match header[3] {
                HEADERS => self.newest = self.newest.max(stream),
                PING if header[4] & ACK != 0 => match payload.first_chunk() {
                    Some(payload) if *payload == LAST_PING => self.last = Some(self.newest),
                    Some(_) => {}
                    None => return start,
                },
                WINDOW_UPDATE if self.last.is_some_and(|last| stream > last) => header[3] = UNKNOWN,
                _ => {}
            }
            self.n_before = HEADER_BYTES + len as usize;
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.n_checked == 0 {
            this.input.reserve(READ_BYTES);
            if ready!(poll_read_buf(Pin::new(&mut this.stream), cx, &mut this.input))? == 0 {
                // The client sends no more: the start of a frame that it has not finished may pass.
                this.n_checked = this.input.len();
                break;
            }
            this.n_checked = this.frames.check(&mut this.input);
        }
        let len = this.n_checked.min(buf.remaining());
        buf.put_slice(&this.input.split_to(len));
        this.n_checked -= len;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let len = (payload.len() as u32).to_be_bytes();
        [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }

    /// Three calls of which the last comes after the last ping; each frame that is to be hidden has the type `late`.
    fn session(late: u8) -> Vec<u8> {
        [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            frame(HEADERS, 4, 1, &[7; 40]),
            frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 5]),
            frame(PING, ACK, 0, &[1; 8]),
            frame(HEADERS, 4, 3, &[]),
            frame(PING, 0, 0, &LAST_PING),
            frame(WINDOW_UPDATE, 0, 5, &[0, 0, 0, 5]),
            frame(PING, ACK, 0, &LAST_PING),
            frame(HEADERS, 4, 5, &[8; 3]),
            frame(late, 0, 5, &[0, 0, 0, 5]),
            frame(WINDOW_UPDATE, 0, 3, &[0, 0, 0, 5]),
            frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 5]),
            frame(0, 1, 5, &frame(WINDOW_UPDATE, 0, 9, &[0; 4])),
        ]
        .concat()
    }

    /// The bytes that the server reads if the client sends `bytes` in pieces of `len` bytes.
    fn read_in_pieces(bytes: &[u8], len: usize) -> Vec<u8> {
        let (mut frames, mut input, mut read) = (Frames::default(), Vec::new(), Vec::new());
        for piece in bytes.chunks(len) {
            input.extend(piece);
            let n_checked = frames.check(&mut input);
            read.extend(input.drain(..n_checked));
            assert!(input.len() < HEADER_BYTES + 8);
        }
        read
    }

    #[test]
    fn window_updates_of_late_calls_are_hidden() {
        let sent = session(WINDOW_UPDATE);
        for len in 1..=sent.len() {
            assert_eq!(read_in_pieces(&sent, len), session(UNKNOWN), "pieces of {len} bytes");
        }
    }
}
