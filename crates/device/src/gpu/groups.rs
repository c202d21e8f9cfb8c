//! Tuning of generated kernels: elements per thread, threads per block and per row. No choice
//! changes a bit of the result.
//!
//! A case is one fused group, in any network; its family is the hash of its code. A case determines
//! the space, but only a plan can be run ([`all`]).

use std::collections::BTreeMap;
use std::slice;

use orind_kernels::catalogue::Kernel;
use orind_kernels::generated::{self, Generated, GroupForm, GroupVariant};
use orind_kernels::jit;
use orind_kernels::params::TensorParams;
use orind_kernels::source::Target;

use super::launch::{Launch, Params};
use super::launches;
use super::layout::Layout;
use super::storage::unsupported;
use crate::tune::{Candidates, Case, Choice, Choices, Parameter, Scope, Space};
use crate::{Request, Result};
use plan::{Class, DType, Plan};

const WARPS: &str = "warps";
const UNROLL: &str = "unroll";
const THREADS_PER_ROW: &str = "threads_per_row";

/// Prefix of a family; the group's name follows.
const fn prefix(form: GroupForm) -> &'static str {
    match form {
        GroupForm::Elements => "group_elements_",
        GroupForm::Rows => "group_rows_",
        GroupForm::Columns => "group_columns_",
    }
}

/// Tunable groups of a request's plans, each as a plan of its own.
///
/// # Errors
///
/// [`crate::Error::Unsupported`] if kernels cannot be generated, with the reason.
pub(super) fn all(request: &Request<'_>) -> Result<BTreeMap<Case, Plan>> {
    jit::compiler().map_err(|why| unsupported(format!("generated kernels: {why}")))?;
    let mut all = BTreeMap::new();
    for plan in request.plans {
        for group in plan::schedule(plan).into_iter().filter(|group| group.is_kernel(plan)) {
            let Some(alone) = group.alone(plan).filter(is_seen) else { continue };
            if let Some(case) = case_of(&alone) {
                all.insert(case, alone);
            }
        }
    }
    Ok(all)
}

/// Returns whether the host can write all inputs and read all outputs: otherwise results cannot be
/// compared.
fn is_seen(plan: &Plan) -> bool {
    plan.buffers.iter().all(|buffer| match buffer.class {
        Class::Output => buffer.dtype == DType::F32,
        Class::Mailbox => {
            matches!(buffer.dtype, DType::F32 | DType::I32 | DType::I8 | DType::U8 | DType::BOOL)
        }
        _ => true,
    })
}

/// Case of a plan that is a single group; `None` if it does not launch a generated kernel.
fn case_of(plan: &Plan) -> Option<Case> {
    let request =
        Request { weights: &[], states: &[], plans: slice::from_ref(plan), choices: None };
    let layout = Layout::new(&request).ok()?;
    match &launches(plan, &layout, &request, 1).ok()?[..] {
        [Launch { kernel: Kernel::Tensor, params: Params::Tensor(params), .. }] => {
            Some(case(params)).filter(|case| case.rows > 0 && case.cols > 0)
        }
        _ => None,
    }
}

/// Rows are the number of results, columns the number of elements reduced to each.
fn case(params: &TensorParams) -> Case {
    let form = GroupForm::of(params);
    let (rows, cols) = match form {
        GroupForm::Elements => (params.elements, 1),
        GroupForm::Rows | GroupForm::Columns => {
            (params.outer.saturating_mul(params.inner), params.length)
        }
    };
    let name = Generated::of(params, GroupVariant::of(params)).name();
    Case { family: format!("{}{name}", prefix(form)), dtype: DType::F32, rows, cols, batch: 1 }
}

/// Form and name of a case's group; `None` for other cases.
fn group(case: &Case) -> Option<(GroupForm, &str)> {
    let all = [GroupForm::Elements, GroupForm::Rows, GroupForm::Columns];
    all.into_iter().find_map(|form| Some((form, case.family.strip_prefix(prefix(form))?)))
}

/// Variant chosen for a group.
pub(super) fn variant(choices: Option<&Choices>, params: &TensorParams) -> GroupVariant {
    let choices = choices.filter(|choices| !choices.is_empty());
    let choice = choices.and_then(|choices| choices.get(&case(params)));
    let heuristic = GroupVariant::of(params);
    choice.map_or(heuristic, |choice| variant_of(choice, heuristic))
}

/// Variant of a choice; the default fills in missing parameters.
fn variant_of(choice: &Choice, heuristic: GroupVariant) -> GroupVariant {
    let GroupVariant { warps, unroll, threads_per_row } = heuristic;
    let value = |name: &str, heuristic| choice.get(name).copied().unwrap_or(heuristic);
    GroupVariant {
        warps: value(WARPS, warps),
        unroll: value(UNROLL, unroll),
        threads_per_row: value(THREADS_PER_ROW, threads_per_row),
    }
}

/// Allowed values for a case; `None` if it is no group.
pub(super) fn space(target: Target, case: &Case) -> Option<Space> {
    let (form, _) = group(case)?;
    let compiler = jit::compiler();
    let known = GroupVariant::heuristic(form, case.rows, case.cols);
    let parameter = |name, meaning, values: &[u32], heuristic: u32| {
        let values = if compiler.is_ok() { values.to_vec() } else { vec![heuristic] };
        (Parameter { name, meaning, values, scope: Scope::Launch }, (name.to_owned(), heuristic))
    };
    let mut all = vec![
        parameter(WARPS, "warps of a block", GroupVariant::WARPS, known.warps),
        parameter(
            UNROLL,
            "elements of a thread that are loaded before the first is computed",
            GroupVariant::UNROLL,
            known.unroll,
        ),
    ];
    if form == GroupForm::Rows {
        all.push(parameter(
            THREADS_PER_ROW,
            "threads that share a row",
            GroupVariant::THREADS_PER_ROW,
            known.threads_per_row,
        ));
    }
    let (parameters, heuristic) = all.into_iter().unzip();
    let rule = move |choice: &Choice| {
        let variant = variant_of(choice, known);
        if variant.threads().is_multiple_of(variant.threads_per_row) {
            return Ok(());
        }
        Err(format!(
            "{} threads are no whole rows of {}",
            variant.threads(),
            variant.threads_per_row
        ))
    };
    let candidates = compiler.as_ref().map_or(Candidates::Prebuilt, |compiler| {
        let (major, minor) = compiler.version();
        Candidates::Nvrtc(major.unsigned_abs(), minor.unsigned_abs())
    });
    let source = generated::hash(target);
    let mut space = Space::new(parameters, heuristic, source, candidates, rule).compiling(|_| true);
    space.origin = match compiler {
        Ok(_) => format!("compiled here by {candidates}"),
        Err(why) => format!("none ({why})"),
    };
    Some(space)
}

/// Compiles the kernel of a choice unless `wanted` cancels; `None` if the case is no group.
pub(super) fn compile(
    target: Target,
    case: &Case,
    choice: &Choice,
    wanted: &dyn Fn() -> bool,
) -> Option<Result<()>> {
    let (form, name) = group(case)?;
    let heuristic = GroupVariant::heuristic(form, case.rows, case.cols);
    let Some(group) = Generated::named(name, variant_of(choice, heuristic)) else {
        return Some(Err(unsupported(format!("{case}: the group is not part of a known plan"))));
    };
    let made = jit::code(Kernel::Generated(group), target, wanted);
    Some(made.map(|_| ()).map_err(|error| unsupported(error.to_string())))
}
