//! The integration tests of the symbolic engine, as one program; `cases` draws the expressions that several of them
//! share.

mod cases;
mod contradictions;
mod families;
mod oracle;
mod print;
mod rules;
