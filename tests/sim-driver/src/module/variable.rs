//! Variables in the memory of modules and libraries.

use std::ffi::{CString, c_char};
use std::sync::Arc;

use cuda_driver_sys::CUdeviceptr;

use super::declaration::Variable;
use super::{INVALID_HANDLE, LibraryId, ModuleId};
use crate::context::ContextId;
use crate::export::{Answer, INVALID_VALUE, In, Out};
use crate::memory::{Mapping, bytes};
use crate::state::State;

/// A variable that has memory.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    name: CString,
    pub(crate) address: u64,
    pub(crate) size: u64,
}

/// Variables with the memory that they share. An allocation each tells copies and questions where they are.
#[derive(Debug, Default)]
pub(super) struct Variables {
    pub(super) all: Arc<[Placed]>,
    mapping: Option<Mapping>,
}

impl Placed {
    pub(super) fn is_named(&self, name: &str) -> bool {
        self.name.as_bytes() == name.as_bytes()
    }

    /// Writes what the program wants to know of it.
    pub(super) fn write(&self, address: Out<CUdeviceptr>, size: Out<usize>) {
        address.write_if_wanted(self.address);
        size.write_if_wanted(self.size as usize);
    }
}

/// The name that is asked for. Measured: one of the two results may be left out.
pub(super) fn name(
    address: Out<CUdeviceptr>,
    size: Out<usize>,
    name: In<c_char>,
) -> Answer<String> {
    if address.required().is_err() && size.required().is_err() {
        return Err(INVALID_VALUE);
    }
    let name = name.text()?;
    if name.is_empty() {
        return Err(INVALID_VALUE);
    }
    Ok(name)
}

impl State {
    /// The variable of a module with this name.
    pub(super) fn variable(&self, module: ModuleId, name: &str) -> Answer<&Placed> {
        let module = self.modules.modules.get(&module).ok_or(INVALID_HANDLE)?;
        let mut variables = module.variables.iter();
        if let Some(found) = variables.find(|it| it.is_named(name)) {
            return Ok(found);
        }
        // Measured: NOT_FOUND, and another error for the name of a kernel.
        match module.code.find(name) {
            Ok(_) => Err(INVALID_VALUE),
            Err(missing) => Err(missing),
        }
    }

    /// The variables of a library in managed memory, which get it on first use.
    pub(super) fn managed_variables_of(&mut self, library: LibraryId) -> Answer<Arc<[Placed]>> {
        let found = self.modules.libraries.get(&library).ok_or(INVALID_HANDLE)?;
        if let Some(managed) = &found.managed {
            return Ok(Arc::clone(&managed.all));
        }
        let code = found.code.clone()?;
        let managed = code.variables.iter().filter(|it| it.is_managed);
        let managed = self.place(managed, None, 0)?;
        let all = Arc::clone(&managed.all);
        if let Some(found) = self.modules.libraries.get_mut(&library) {
            found.managed = Some(managed);
        }
        Ok(all)
    }

    /// Gives variables memory with their initial bytes: of a context, or managed. Measured: managed memory of variables
    /// belongs to no context.
    pub(super) fn place<'a>(
        &mut self,
        variables: impl Iterator<Item = &'a Variable>,
        context: Option<ContextId>,
        device: usize,
    ) -> Answer<Variables> {
        let too_large = cuda_driver_sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        let mut end = 0_u64;
        let mut places = Vec::new();
        let mut largest = 1;
        for variable in variables {
            let align = (variable.align as u64).max(1);
            let start = end.checked_next_multiple_of(align).ok_or(too_large)?;
            end = start.checked_add(variable.size as u64).ok_or(too_large)?;
            largest = largest.max(align);
            places.push((start, variable));
        }
        if places.is_empty() {
            return Ok(Variables::default());
        }
        let (mapping, base) = Mapping::allocate_aligned(end, largest)?;
        let all = places.into_iter().map(|(start, variable)| {
            let address = base + start;
            // The rest of fresh memory is zero.
            bytes::write(address, &variable.contents);
            let size = variable.size as u64;
            self.add_variable(address, size, context, device);
            Placed {
                name: variable.name.clone(),
                address,
                size,
            }
        });
        Ok(Variables {
            all: all.collect(),
            mapping: Some(mapping),
        })
    }

    /// Gives the memory back. It stays until no queue can access it.
    pub(super) fn end_variables(&mut self, variables: Variables) {
        for variable in variables.all.iter() {
            self.free_allocation(variable.address);
        }
        if let Some(mapping) = variables.mapping {
            self.bury(mapping);
        }
    }
}
