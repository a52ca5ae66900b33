//! The terminal while it belongs to the live view.
//!
//! Guarantees: the terminal is as it was before (screen, cursor, line editing) after the value is dropped, also
//! by a panic, which then prints to the user's own screen. Only what changed is written, so nothing flickers.
//! Not after SIGKILL: then `reset` helps.

use std::io::{self, Stdout};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Once;

use forebay_tier::{Error, Result};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    disable_raw_mode, enable_raw_mode, EnterAlternateScreen, LeaveAlternateScreen,
};
use ratatui::{Frame, Terminal};
use rustix::process::{getpid, kill_process, Signal};

/// Whether the terminal has to be restored.
static TAKEN: AtomicBool = AtomicBool::new(false);
static PANIC_HOOK: Once = Once::new();

/// The terminal, taken.
pub struct Screen {
    /// Never dropped, only forgotten: its own end shows the cursor, as [`restore`] does, and prints when that fails,
    /// which panics where standard error is the terminal that is gone.
    terminal: ManuallyDrop<Terminal<CrosstermBackend<Stdout>>>,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// `Io` when it cannot be switched.
    pub fn open() -> Result<Screen> {
        PANIC_HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                restore();
                before(info);
            }));
        });
        take().map_err(failed)?;
        match Terminal::new(CrosstermBackend::new(io::stdout())) {
            Ok(terminal) => Ok(Screen { terminal: ManuallyDrop::new(terminal) }),
            Err(e) => {
                restore();
                Err(failed(e))
            }
        }
    }

    /// Draws a whole picture; what is the same as before is not written again.
    ///
    /// # Errors
    /// `Io` when the terminal is gone.
    pub fn draw(&mut self, picture: impl FnOnce(&mut Frame)) -> Result<()> {
        self.terminal.draw(picture).map(drop).map_err(failed)
    }

    /// Restores the terminal and stops this process, as Ctrl-Z does everywhere; takes it again on `fg`.
    ///
    /// # Errors
    /// `Io` when the terminal is gone by then.
    pub fn suspend(&mut self) -> Result<()> {
        restore();
        kill_process(getpid(), Signal::TSTP).map_err(|e| failed(e.into()))?;
        take().and_then(|()| self.terminal.clear()).map_err(failed)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

fn take() -> io::Result<()> {
    enable_raw_mode()?;
    TAKEN.store(true, SeqCst);
    execute!(io::stdout(), EnterAlternateScreen).inspect_err(|_| restore())
}

/// Twice is as good as once. A terminal that is gone needs nothing back.
fn restore() {
    if TAKEN.swap(false, SeqCst) {
        let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}

fn failed(e: io::Error) -> Error {
    Error::io("using the terminal", e).hint("forebay top --once prints a table instead")
}
