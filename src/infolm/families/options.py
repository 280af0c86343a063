"""The options of `evaluate` and `generate`: typed sections that each family declares.

A family's module `options` registers a section for each of the two, a dataclass with a field for
each option:

    @EVALUATING.register
    @dataclass(frozen=True, kw_only=True)
    class LanguageEvaluateOptions(EvaluateOptions):
        kind = "language"
        mc: Annotated[int, Option("The number of dropout masks.", least=0)] = 0
        mc_rate: Annotated[str, Option("Times the dropout rates.", needs=(OF_MC,))] = "1"

The command line's options are the union over the families, and `infolm.evaluate` takes the same
names. Each option declares what it needs of others. An option of another family is refused with
that family's reason. Modules of options import nothing heavy, since the help text is made from
them.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, dataclass, fields
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeVar,
    get_args,
    get_origin,
)

from infolm.errors import InfolmError
from infolm.registry import Registry

if TYPE_CHECKING:
    from infolm.data.tokens import Tokenizer
    from infolm.generation.sampling import SamplingSettings


class Needs(NamedTuple):
    """A condition of an option: if `met` fails for the section, the sentence is the error."""

    met: Callable[[Any], Any]
    sentence: str


@dataclass(frozen=True)
class Option:
    """The description of an option, besides its type and default.

    metavar: the name of its value. panel: its group in the help. least, most: its smallest and
    largest value; larger ones would need too much memory or time. usual: the default in words, if
    the value is unclear. alone: the value if the command line gives none. needs: conditions checked
    in order if it differs from its default.
    """

    help: str
    metavar: str | None = None
    panel: str | None = None
    least: float | None = None
    most: float | None = None
    usual: str = ""
    alone: str | None = None
    needs: tuple[Needs, ...] = ()


class Described(NamedTuple):
    """An option of a section: its type without None, as None is "not given"."""

    name: str
    annotation: Any
    type: Any
    default: Any
    option: Option
    section: "type[Options]"

    @property
    def flag(self) -> str:
        return flag(self.name)

    @property
    def choices(self) -> tuple[Any, ...]:
        """The values of an option that is one of several words."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()


def flag(name: str) -> str:
    """mc_rate -> --mc-rate."""
    return f"--{name.replace('_', '-')}"


ACCEPTED: dict[Any, tuple[Callable[[Any], Any], tuple[type, ...]]] = {
    bool: (bool, (bool,)),
    int: (int, (int,)),
    float: (float, (int, float)),
    str: (str, (str, int, float)),
    Path: (Path, (str, type(Path()))),
    tuple: (tuple, (tuple, list)),
}
"""For each type of an option, its converter and the types that it accepts."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """A section of options, checked when it is constructed.

    kind: the family's. foreign: why a run of this family refuses other families' options.
    elsewhere: why runs of other families refuse this family's options, unless they have their own
    reason. Both name the run as {}.
    """

    kind: ClassVar[str]
    foreign: ClassVar[str] = ""
    elsewhere: ClassVar[str] = "{} is a run of a family without this option: leave it out"

    def __post_init__(self) -> None:
        for each in described(type(self)).values():
            value = getattr(self, each.name)
            if value != each.default:
                object.__setattr__(self, each.name, _checked(each, value))
                for needs in each.option.needs:
                    if not needs.met(self):
                        raise InfolmError(needs.sentence)


def _checked(option: Described, value: Any) -> Any:
    """The value converted to the option's type, or a refusal."""
    if option.choices:
        if value not in option.choices:
            raise InfolmError(f"{option.flag} is {' or '.join(option.choices)}, not '{value}'")
        return value
    made, accepted = ACCEPTED[get_origin(option.type) or option.type]
    if type(value) not in accepted:
        raise InfolmError(f"{option.flag} is of type {made.__name__}, not {value!r}")
    least = option.option.least
    if least is not None and not value >= least:
        raise InfolmError(f"{option.flag} is {least:g} or more, not {value}")
    most = option.option.most
    if most is not None and not value <= most:
        raise InfolmError(f"{option.flag} is at most {most:,}, not {value:,}")
    return made(value)


Seed = Annotated[int, Option("Seed of --mc, --reverse and --mi.", least=0)]
"""The seed of an evaluation."""


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(Options):
    """The evaluation options of every family."""

    measured: ClassVar[tuple[str, ...]] = ("valid", "test")
    """The splits that can be measured."""

    split: Annotated[
        str | None,
        Option("valid or test; for a model with a latent code also train.", usual="both"),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.split in (None, *self.measured):
            return
        if self.split == "train":
            raise InfolmError(
                "--split is valid or test: this run has no latent code, so train is refused"
            )
        raise InfolmError(
            f"--split is valid or test, or train for a model with a latent code, not '{self.split}'"
        )

    @property
    def shared(self) -> bool:
        """Whether several processes share the work; each gets the result."""
        return False

    @property
    def splits(self) -> list[str]:
        return [self.split] if self.split else ["valid", "test"]


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(Options):
    """The base of the generation options; families share none."""


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(GenerateOptions):
    """The number of samples, and how words are drawn; see `generation.sampling`."""

    num: Annotated[int, Option("Number of samples.", least=1, most=100_000)] = 1
    seed: Annotated[int, Option("The same seed gives the same text.")] = 1
    temperature: Annotated[float, Option("Sampling temperature; lower is safer.")] = 1.0
    top_k: Annotated[int | None, Option("Draw from the K likeliest tokens.")] = None
    top_p: Annotated[float | None, Option("Nucleus sampling with mass P.")] = None
    eta: Annotated[float | None, Option("Eta sampling with this epsilon.")] = None
    typical: Annotated[float | None, Option("Locally typical sampling with mass P.")] = None
    greedy: Annotated[bool, Option("Always take the likeliest token.")] = False
    no_unk: Annotated[bool, Option("Never write <unk>.")] = False

    def settings(self, tokenizer: "Tokenizer") -> "SamplingSettings":
        """The sampler for a vocabulary."""
        from infolm.generation.sampling import SamplingSettings

        unk = tokenizer.unk
        forbid = (unk,) if self.no_unk and unk is not None else ()
        names = ("temperature", "top_k", "top_p", "eta", "typical", "greedy")
        return SamplingSettings(**{name: getattr(self, name) for name in names}, forbid=forbid)


Section = TypeVar("Section", bound=Options)

EVALUATING: Registry[EvaluateOptions] = Registry("infolm.families", "options")
GENERATING: Registry[GenerateOptions] = Registry("infolm.families", "options")


def described(section: type[Options]) -> dict[str, Described]:
    """The options of a section, by name, in the order of its fields."""
    return {field.name: _described(field, section) for field in fields(section)}


def _described(field: "Field[Any]", section: type[Options]) -> Described:
    annotation, option = get_args(field.type)
    kind = annotation
    if get_origin(annotation) is UnionType:
        (kind,) = (each for each in get_args(annotation) if each is not type(None))
    return Described(field.name, annotation, kind, field.default, option, section)


def union(sections: Mapping[str, type[Section]]) -> dict[str, Described]:
    """The options of all families by name; a shared option is described as in the first family."""
    found: dict[str, Described] = {}
    for section in sections.values():
        found = {**found, **{k: v for k, v in described(section).items() if k not in found}}
    return found


def no_option(name: str, known: Collection[str]) -> InfolmError:
    """The error for an unknown option."""
    from infolm.section import nearest

    return InfolmError(
        f"there is no option '{name}' here{nearest(name, known)} (there are {', '.join(known)})"
    )


def chosen(
    sections: Mapping[str, type[Section]], kind: str, run: object, given: Mapping[str, Any]
) -> Section:
    """A family's section with the values given by name, or a refusal.

    run: the name of the run in messages. Defaults of other families' options count as not given.
    """
    section, known = sections[kind], union(sections)
    own = described(section)
    for name in given:
        if name not in known:
            from infolm.section import nearest

            raise InfolmError(
                f"there is no option '{name}' here{nearest(name, own)} (there are {', '.join(own)})"
            )
    foreign = [known[k] for k, v in given.items() if k not in own and v != known[k].default]
    if foreign:
        why = section.foreign or foreign[0].section.elsewhere
        raise InfolmError(f"{', '.join(each.flag for each in foreign)}: {why.format(run)}")
    return section(**{name: value for name, value in given.items() if name in own})
