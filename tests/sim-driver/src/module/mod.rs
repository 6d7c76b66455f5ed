//! Modules, libraries, kernels and their launch. The simulator parses the declarations of PTX. It runs kernels by name:
//! a few that are built in, and those that the program gives a model.

mod attributes;
mod code;
mod cubin;
mod declaration;
mod expression;
mod function;
mod image;
mod kernel;
mod launch;
mod library;
mod link;
mod load;
pub(crate) mod model;
mod occupancy;
mod ptx;
mod run;
mod tokens;
mod variable;
mod work;

use std::collections::BTreeMap;
use std::sync::Arc;

use cuda_driver_sys::{CUfunction, CUkernel, CUlibrary, CUmodule, CUresult};

use crate::configuration::Configuration;
use crate::context::ContextId;
use crate::export::{Answer, Export};
use crate::state::{HandleKind, State, from_handle};

use code::{Code, Entry};
pub(crate) use kernel::BuiltIn;
pub(crate) use launch::{Arguments, LaunchConfiguration, Prepared, extra_list};
use link::Link;
pub(crate) use model::ArgumentBuffer;
pub(crate) use run::ModelRun;
use variable::{Placed, Variables};
pub(crate) use work::Work;

/// Number of kernels in an image, or the line where it is refused.
pub(crate) fn kernels(image: &[u8]) -> Result<usize, usize> {
    let source = image::source(image.as_ptr().cast(), image.len());
    let code = source.and_then(|source| source.code());
    code.map(|code| code.entries.len())
        .map_err(|refusal| refusal.line)
}

/// The numbers behind the handles.
type ModuleId = u64;
type FunctionId = u64;
type LibraryId = u64;
type KernelId = u64;

const INVALID_HANDLE: CUresult = CUresult::CUDA_ERROR_INVALID_HANDLE;

/// The exports of this folder.
pub(crate) static EXPORTS: [&[&Export]; 6] = [
    function::EXPORTS,
    launch::EXPORTS,
    library::EXPORTS,
    link::EXPORTS,
    load::EXPORTS,
    occupancy::EXPORTS,
];

/// All loaded code.
#[derive(Debug)]
pub(crate) struct Modules {
    /// Code is loaded on first use, not when first looked up.
    is_lazy: bool,
    modules: BTreeMap<ModuleId, Module>,
    functions: BTreeMap<FunctionId, Function>,
    libraries: BTreeMap<LibraryId, Library>,
    kernels: BTreeMap<KernelId, Kernel>,
    links: BTreeMap<u64, Link>,
}

/// Code loaded into a context.
#[derive(Debug)]
struct Module {
    context: ContextId,
    device: usize,
    code: Arc<Code>,
    /// The library that it is a copy of.
    library: Option<LibraryId>,
    /// The functions looked up so far, by entry index.
    functions: BTreeMap<usize, FunctionId>,
    /// Those that it may use, some of them its library's.
    variables: Arc<[Placed]>,
    /// Its own, in the memory of the context and in managed memory.
    own: [Variables; 2],
}

/// A kernel in a context.
#[derive(Debug)]
struct Function {
    module: ModuleId,
    code: Arc<Code>,
    entry: usize,
    is_loaded: bool,
    /// Attributes set by the program.
    set: BTreeMap<u32, i32>,
}

/// Code without a context.
#[derive(Debug)]
struct Library {
    /// The code, or its error, which only kernel lookups return.
    code: Result<Arc<Code>, CUresult>,
    /// In entry order.
    kernels: Vec<KernelId>,
    /// Its copies in contexts.
    modules: BTreeMap<ContextId, ModuleId>,
    /// Its variables in managed memory, which all copies share, once one of them was needed.
    managed: Option<Variables>,
}

/// A kernel without a context.
#[derive(Debug)]
struct Kernel {
    library: LibraryId,
    code: Arc<Code>,
    entry: usize,
}

impl Function {
    fn entry(&self) -> Answer<&Entry> {
        self.code.entries.get(self.entry).ok_or(INVALID_HANDLE)
    }
}

impl Kernel {
    fn entry(&self) -> Answer<&Entry> {
        self.code.entries.get(self.entry).ok_or(INVALID_HANDLE)
    }
}

/// Documented: lazy loading is the default on Linux from CUDA 12.2 on. A guess: an unknown value means the default.
fn is_lazy(value: Option<&str>, version: u32) -> bool {
    match value {
        Some("LAZY") => true,
        Some("EAGER") => false,
        _ => version >= 12020,
    }
}

impl Modules {
    pub(crate) fn new(configuration: &Configuration) -> Self {
        let value = cuda_sim_support::settings::setting("CUDA_MODULE_LOADING");
        Self {
            is_lazy: is_lazy(value.as_deref(), configuration.version),
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            libraries: BTreeMap::new(),
            kernels: BTreeMap::new(),
            links: BTreeMap::new(),
        }
    }

    /// Counts of modules loaded by the program, libraries, images in contexts, and linkers.
    pub(crate) fn live(&self) -> [u64; 4] {
        let modules = self.modules.values();
        let own = modules.filter(|module| module.library.is_none());
        [
            own.count(),
            self.libraries.len(),
            self.modules.len(),
            self.links.len(),
        ]
        .map(|count| count as u64)
    }
}

impl State {
    /// Number of images loaded on a device.
    pub(crate) fn images(&self, device: usize) -> u64 {
        let modules = self.modules.modules.values();
        modules.filter(|module| module.device == device).count() as u64
    }

    // A guess for all kinds of handles here: null, unknown and destroyed ones are INVALID_HANDLE. The driver may crash.
    fn module(&mut self, handle: CUmodule) -> Answer<(ModuleId, &mut Module)> {
        let id = from_handle(handle);
        let module = self.modules.modules.get_mut(&id).ok_or(INVALID_HANDLE)?;
        Ok((id, module))
    }

    fn function(&mut self, handle: CUfunction) -> Answer<&mut Function> {
        let function = self.modules.functions.get_mut(&from_handle(handle));
        function.ok_or(INVALID_HANDLE)
    }

    /// Whether the code of a function is loaded still.
    pub(crate) fn has_function(&self, id: FunctionId) -> bool {
        self.modules.functions.contains_key(&id)
    }

    /// The context that a function is in. A kernel of a library is none.
    pub(crate) fn context_of(&mut self, handle: CUfunction) -> Answer<ContextId> {
        let module = self.function(handle)?.module;
        let module = self.modules.modules.get(&module).ok_or(INVALID_HANDLE)?;
        Ok(module.context)
    }

    fn library(&self, handle: CUlibrary) -> Answer<(LibraryId, &Library)> {
        let id = from_handle(handle);
        let library = self.modules.libraries.get(&id).ok_or(INVALID_HANDLE)?;
        Ok((id, library))
    }

    fn kernel(&self, handle: CUkernel) -> Answer<&Kernel> {
        let kernel = self.modules.kernels.get(&from_handle(handle));
        kernel.ok_or(INVALID_HANDLE)
    }

    /// Loads code into a context.
    fn add_module(
        &mut self,
        context: ContextId,
        code: Arc<Code>,
        library: Option<LibraryId>,
    ) -> Answer<ModuleId> {
        let device = self.context(context)?.device;
        let of_kind = |is_managed| {
            let all = code.variables.iter();
            all.filter(move |it| it.is_managed == is_managed)
        };
        let shared = library.map(|library| self.managed_variables_of(library));
        let mut shared = shared.transpose()?.unwrap_or_default();
        let plain = self.place(of_kind(false), Some(context), device)?;
        let mut managed = Variables::default();
        if library.is_none() {
            managed = match self.place(of_kind(true), None, device) {
                Ok(managed) => managed,
                Err(code) => {
                    self.end_variables(plain);
                    return Err(code);
                }
            };
            shared = Arc::clone(&managed.all);
        }
        let id = self.new_handle(HandleKind::Module);
        let module = Module {
            context,
            device,
            code,
            library,
            functions: BTreeMap::new(),
            variables: plain.all.iter().chain(shared.iter()).cloned().collect(),
            own: [plain, managed],
        };
        self.modules.modules.insert(id, module);
        Ok(id)
    }

    /// The function of a module's entry, the same on every call.
    fn function_of(&mut self, module: ModuleId, entry: usize) -> Answer<FunctionId> {
        let id = self.new_handle(HandleKind::Function);
        let is_loaded = !self.modules.is_lazy;
        let found = self.modules.modules.get_mut(&module);
        let found = found.ok_or(INVALID_HANDLE)?;
        if let Some(known) = found.functions.get(&entry) {
            return Ok(*known);
        }
        found.functions.insert(entry, id);
        let function = Function {
            module,
            code: Arc::clone(&found.code),
            entry,
            is_loaded,
            set: BTreeMap::new(),
        };
        self.modules.functions.insert(id, function);
        Ok(id)
    }

    /// Marks the code of a function as loaded.
    fn load_function(&mut self, id: FunctionId) {
        if let Some(function) = self.modules.functions.get_mut(&id) {
            function.is_loaded = true;
        }
    }

    /// The copy of a library in a context, created on first use there.
    fn copy_of(&mut self, library: LibraryId, context: ContextId) -> Answer<ModuleId> {
        let found = self.modules.libraries.get(&library).ok_or(INVALID_HANDLE)?;
        if let Some(module) = found.modules.get(&context) {
            return Ok(*module);
        }
        let code = found.code.clone()?;
        let module = self.add_module(context, code, Some(library))?;
        if let Some(found) = self.modules.libraries.get_mut(&library) {
            found.modules.insert(context, module);
        }
        Ok(module)
    }

    /// Whether a library has a copy in a context.
    fn has_copy(&self, library: LibraryId, context: ContextId) -> bool {
        let library = self.modules.libraries.get(&library);
        library.is_some_and(|library| library.modules.contains_key(&context))
    }

    /// The function of a kernel in a context.
    fn bind(&mut self, kernel: KernelId, context: ContextId) -> Answer<FunctionId> {
        let found = self.modules.kernels.get(&kernel).ok_or(INVALID_HANDLE)?;
        let (library, entry) = (found.library, found.entry);
        let module = self.copy_of(library, context)?;
        self.function_of(module, entry)
    }

    /// The function of a handle. A kernel handle is bound to the context.
    fn function_in(&mut self, handle: CUfunction, context: ContextId) -> Answer<FunctionId> {
        let id = from_handle(handle);
        if self.modules.kernels.contains_key(&id) {
            return self.bind(id, context);
        }
        self.function(handle).map(|_| id)
    }

    /// Loads all libraries into a new context, unless loading is lazy.
    pub(crate) fn load_libraries_into(&mut self, context: ContextId) {
        if self.modules.is_lazy {
            return;
        }
        let libraries: Vec<LibraryId> = self.modules.libraries.keys().copied().collect();
        for library in libraries {
            // Without memory for its variables it stays out, and its first use here fails.
            let _ = self.copy_of(library, context);
        }
    }

    /// Unloads everything from a destroyed context.
    pub(crate) fn end_modules_of(&mut self, context: ContextId) {
        let modules = self.modules.modules.iter();
        let its = modules.filter(|(_, module)| module.context == context);
        let its: Vec<ModuleId> = its.map(|(id, _)| *id).collect();
        for module in its {
            self.end_module(module);
        }
    }

    fn end_module(&mut self, id: ModuleId) {
        let modules = &mut self.modules;
        modules
            .functions
            .retain(|_, function| function.module != id);
        let Some(module) = modules.modules.remove(&id) else {
            return;
        };
        if let Some(library) = module.library
            && let Some(library) = modules.libraries.get_mut(&library)
        {
            library.modules.remove(&module.context);
        }
        for variables in module.own {
            self.end_variables(variables);
        }
    }

    /// Unloads a library whose copies have no work left.
    fn end_library(&mut self, id: LibraryId) {
        let Some(library) = self.modules.libraries.get(&id) else {
            return;
        };
        for module in library.modules.clone().into_values() {
            self.end_module(module);
        }
        self.modules
            .kernels
            .retain(|_, kernel| kernel.library != id);
        let managed = self.modules.libraries.remove(&id);
        if let Some(managed) = managed.and_then(|library| library.managed) {
            self.end_variables(managed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loading_is_lazy_from_12_2_on_unless_the_program_says_otherwise() {
        assert!(is_lazy(None, 12020) && !is_lazy(None, 12010));
        assert!(is_lazy(Some("LAZY"), 11070) && !is_lazy(Some("EAGER"), 13000));
        assert!(is_lazy(Some("lazy"), 13000) && !is_lazy(Some("DEFAULT"), 11080));
    }
}
