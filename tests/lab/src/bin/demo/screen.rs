//! The output: lines that stay, and below them a table that is drawn again on a terminal. Elsewhere
//! the table is printed as lines, one for each row that has changed.
#![expect(clippy::print_stdout, reason = "what a command says to its user")]

use std::{
    io::{IsTerminal, Write},
    time::Instant,
};

use lab::clock;

use crate::table::{self, Row};

/// Long lines are cut off instead of wrapped: the table's height must be its number of lines.
const NO_WRAP: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";
const HIDE_CURSOR: &str = "\x1b[?25l";
const SHOW_CURSOR: &str = "\x1b[?25h";
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

/// Standard output.
#[derive(Debug)]
pub(crate) struct Screen {
    started: Instant,
    terminal: bool,
    /// Lines of the table that is drawn below everything else.
    drawn: usize,
    /// The rows as last printed.
    before: Vec<Row>,
}

impl Screen {
    pub(crate) fn new() -> Self {
        Self {
            started: clock::now(),
            terminal: std::io::stdout().is_terminal(),
            drawn: 0,
            before: Vec::new(),
        }
    }

    /// A heading of what comes.
    pub(crate) fn head(&mut self, text: &str) {
        let (on, off) = if self.terminal {
            (BOLD, PLAIN)
        } else {
            ("", "")
        };
        self.say(&format!("\n{on}{text}{off}"));
    }

    /// Something that has happened, with the time since the start.
    pub(crate) fn note(&mut self, text: &str) {
        let at = self.started.elapsed().as_secs_f64();
        self.say(&format!("{at:6.1} s  {text}"));
    }

    /// Text that stays; the table moves below it.
    pub(crate) fn say(&mut self, text: &str) {
        self.erase();
        println!("{text}");
    }

    /// Shows the rows as they are now.
    pub(crate) fn show(&mut self, rows: &[Row]) {
        if self.terminal {
            let lines = table::lines(rows);
            self.erase();
            println!("{HIDE_CURSOR}{NO_WRAP}");
            for line in &lines {
                println!("  {line}");
            }
            print!("{WRAP}");
            // A terminal that is gone is noticed by the next signal.
            let _ = std::io::stdout().flush();
            self.drawn = lines.len() + 1;
        } else {
            self.print_changes(rows);
        }
    }

    /// What is drawn stays; the next table comes below.
    pub(crate) fn leave_table(&mut self) {
        self.drawn = 0;
    }

    /// Leaves the terminal as it was.
    pub(crate) fn finish(&mut self) {
        if self.terminal {
            print!("{WRAP}{SHOW_CURSOR}");
            let _ = std::io::stdout().flush();
        }
    }

    fn erase(&mut self) {
        if self.drawn > 0 {
            print!("\x1b[{}A\x1b[J", self.drawn);
            self.drawn = 0;
        }
    }

    fn print_changes(&mut self, rows: &[Row]) {
        let lines = table::lines(rows);
        let mut lines = lines.iter();
        let head = lines.next();
        if self.before.is_empty()
            && let Some(head) = head
        {
            println!("          {head}");
        }
        for (index, (row, line)) in rows.iter().zip(lines).enumerate() {
            if self.before.get(index).is_none_or(|it| !it.looks_like(row)) {
                self.note(line);
            }
        }
        self.before = rows.to_vec();
    }
}
