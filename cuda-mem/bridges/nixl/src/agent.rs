//! Agents of NIXL, with an error where nixl-sys would end the process.

use nixl_sys::{Agent, AgentConfig};

use crate::error::{Error, Result};

/// Whether NIXL's C library is there: linked, or opened now.
///
/// ```
/// if !cuda_mem_nixl::is_available() {
///     eprintln!("no NIXL: this machine transfers nothing");
/// }
/// ```
#[must_use]
pub fn is_available() -> bool {
    // What nixl-sys calls a stub is a library that could not be opened.
    !nixl_sys::is_stub()
}

/// An agent with NIXL's default settings. Nearly every call of nixl-sys ends the process if there is no NIXL, also
/// [`Agent::new`]; this one is an error then. Everything else in nixl-sys that calls NIXL wants an agent, but for its lists,
/// its options and the `Display` of its `MemType`: check [`is_available`] before those.
///
/// # Errors
///
/// [`Error::NixlMissing`]; otherwise what NIXL answers.
///
/// ```
/// use cuda_mem_nixl::Error;
///
/// match cuda_mem_nixl::agent("trainer-0") {
///     Ok(agent) => println!("{}", agent.name()),
///     Err(Error::NixlMissing) => eprintln!("no NIXL"),
///     Err(other) => return Err(other),
/// }
/// # Ok::<(), Error>(())
/// ```
pub fn agent(name: &str) -> Result<Agent> {
    require()?;
    Ok(Agent::new(name)?)
}

/// An agent with these settings.
///
/// # Errors
///
/// As [`agent`].
pub fn configured_agent(name: &str, settings: &AgentConfig) -> Result<Agent> {
    require()?;
    Ok(Agent::new_configured(name, settings)?)
}

fn require() -> Result<()> {
    if is_available() {
        Ok(())
    } else {
        Err(Error::NixlMissing)
    }
}
