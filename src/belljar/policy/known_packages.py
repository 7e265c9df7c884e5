"""Packages that are known by name: those callers may have by default, and odd import names."""

from __future__ import annotations

# In wide use, of use without a network, with wheels for the usual platforms, and not enormous.
_COMMON = """
    altair arrow attrs babel beautifulsoup4 bokeh chardet charset-normalizer click cryptography
    cssselect cvxpy dateparser deepdiff defusedxml dill docutils duckdb emoji faker
    fastparquet fonttools fpdf2 ftfy geopandas graphviz h5py holidays html5lib humanize
    imbalanced-learn jinja2 joblib jsonpath-ng jsonschema lifelines lightgbm llvmlite lxml markdown
    markdown-it-py markupsafe matplotlib missingno more-itertools mpmath msgpack narwhals networkx
    nltk numba numexpr numpy odfpy opencv-python-headless openpyxl orjson packaging pandas
    parsimonious patsy pdfplumber pendulum phonenumbers pillow pint plotly polars prettytable
    pulp pyarrow pydantic pygments pyparsing pypdf pyproj python-dateutil python-docx python-pptx
    pytz pyyaml qrcode rapidfuzz regex reportlab rich ruamel-yaml scikit-image scikit-learn scipy
    seaborn shapely simplejson sortedcontainers soupsieve sqlalchemy sqlglot sqlparse squarify
    statsmodels svgwrite sympy tabulate tenacity textdistance tinycss2 toml tomlkit toolz tqdm
    typing-extensions tzdata unidecode vadersentiment wordcloud xarray xgboost xlrd xlsxwriter
    xmltodict zstandard
"""
COMMON: frozenset[str] = frozenset(_COMMON.split())

# Import name → distribution, where one cannot be told from the other.
DISTRIBUTIONS: dict[str, str] = {
    "PIL": "pillow",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "fontTools": "fonttools",
    "fpdf": "fpdf2",
    "imblearn": "imbalanced-learn",
    "odf": "odfpy",
    "pptx": "python-pptx",
    "ruamel": "ruamel-yaml",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "vaderSentiment": "vadersentiment",
    "yaml": "pyyaml",
}

# Names that people ask for, and which are something else or nothing on the usual index.
INSTEAD: dict[str, str] = {
    "bs4": "beautifulsoup4",
    "opencv-contrib-python": "opencv-python-headless",
    "opencv-python": "opencv-python-headless",
    "pil": "pillow",
    "psycopg2": "psycopg2-binary",
    "pypdf2": "pypdf",
    "sklearn": "scikit-learn",
}
