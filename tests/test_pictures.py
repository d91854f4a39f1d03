"Odd picture files at every door: the same pixels, or the same refusal, in Python and in a browser."
import base64
import io
import json
import shutil
import zlib

import numpy as np
import pytest
from PIL import Image

from oaml.datasets.rft import RFTRecord
from oaml.datasets.samples import load_image
from oaml.devices.android import AndroidDevice
from oaml.devices.device import DeviceError
from oaml.ingest.store import save_sessions
from oaml.schemas.sessions import Action, Episode, Observation, Session, Step
from oaml.tasks.vision import read_picture
from oaml.viz.tracks import TrackTable, session_tracks

W, H, ORIENTATION = 64, 48, 0x0112
CLEAR, DEEP = "transparent pixels", "8 bits a color"


def drawn():
    "A picture in which no turn and no mirror is like another."
    image = np.full((H, W, 3), (230, 235, 240), np.uint8)
    image[:8], image[:, :6], image[30:40, 40:60] = (30, 60, 160), (200, 40, 40), (20, 160, 60)
    return image


def chunk(kind, data): return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def png(pixels, depth, kind, *others):
    "A PNG of rows of bytes, written by hand for what Pillow does not write."
    head = chunk(b"IHDR", W.to_bytes(4, "big") + H.to_bytes(4, "big") + bytes([depth, kind, 0, 0, 0]))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(others) + chunk(b"IDAT", zlib.compress(b"".join(b"\0" + r.tobytes() for r in pixels))) + chunk(b"IEND", b"")


def saved(image, kind, **how):
    image.save(out := io.BytesIO(), kind, **how)
    return out.getvalue()


def odd_files():
    "Name -> (bytes, pixels as they are meant or words of the refusal, how far a value may be off)."
    pixels = drawn()
    plain = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    lying = plain.transpose(Image.Transpose.ROTATE_90)  # which orientation 6 sets upright again
    clear = plain.convert("RGBA")
    clear.putpixel((3, 3), (1, 2, 3, 0))
    few = plain.quantize(8)
    grey = np.asarray(plain.convert("L"))
    other = Image.new("RGB", (W, H), "black")
    wide = pixels.astype(">u2")*257
    gamma = chunk(b"gAMA", (200_000).to_bytes(4, "big"))
    near = 12  # of JPEG's loss, which is compared with the drawing here; doors are compared with each other more closely
    return {
        "plain.png": (saved(plain, "PNG"), pixels, 0),
        "opaque.png": (saved(plain.convert("RGBA"), "PNG"), pixels, 0),
        "palette.png": (saved(few, "PNG"), pixels, 0),
        "grey.png": (saved(plain.convert("L"), "PNG"), np.repeat(grey[..., None], 3, 2), 0),
        "lying.png": (saved(lying, "PNG", exif=exif), pixels, 0),
        "gamma.png": (png(pixels, 8, 2, gamma), pixels, 0),
        "moving.png": (saved(plain, "PNG", save_all=True, append_images=[other], duration=100), pixels, 0),
        "moving.gif": (saved(few, "GIF", save_all=True, append_images=[other]), pixels, 0),
        "moving.webp": (saved(plain, "WEBP", save_all=True, append_images=[other], lossless=True), pixels, 0),
        "plain.bmp": (saved(plain, "BMP"), pixels, 0),
        "plain.jpg": (saved(plain, "JPEG", quality=95, subsampling=0), pixels, near),
        "lying.jpg": (saved(lying, "JPEG", quality=95, subsampling=0, exif=exif), pixels, near),
        "print.jpg": (saved(plain.convert("CMYK"), "JPEG", quality=95, subsampling=0), pixels, near),
        "clear.png": (saved(clear, "PNG"), CLEAR, 0),
        "clear_color.png": (png(pixels, 8, 2, chunk(b"tRNS", b"\0\x1e\0\x3c\0\xa0")), CLEAR, 0),
        "clear_palette.png": (saved(few, "PNG", transparency=0), CLEAR, 0),
        "deep.png": (png(wide, 16, 2), DEEP, 0),
        "deep_grey.png": (saved(Image.fromarray(np.full((H, W), 30000, np.uint16)), "PNG"), DEEP, 0),
        "cut.png": (saved(plain, "PNG")[:-60], "", 0),
        "broken.png": (saved(plain, "PNG").replace(b"IDAT", b"IDAU"), "", 0),
        "cut.jpg": (saved(plain, "JPEG")[:700], "", 0),
        "bomb.png": (saved(Image.new("1", (9000, 9000)), "PNG"), "pixels", 0),
        "words.png": (b"no picture", "", 0)}


FILES = odd_files()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd")
    for name, (data, *_) in FILES.items(): (folder/name).write_bytes(data)
    return folder


def through_rft(path): return np.asarray(RFTRecord(0, "a.jsonl:1", "", (), {"<image_00>": str(path)}).screen("<image_00>"))


def through_rft_line(path):
    data = "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
    return np.asarray(RFTRecord(0, "a.jsonl:1", "", (), {"<image_00>": data}).screen("<image_00>"))


def through_the_server(path):
    from oaml.scripts.serve_model import DATA_URL, _picture
    return np.asarray(_picture(f"{DATA_URL}png;base64," + base64.b64encode(path.read_bytes()).decode(), "messages[0]"))


def through_adb(path):
    class Phone:  # what `_picture` asks of a device
        size = (W, H)
        def _error(self, text): return DeviceError(text)
    return AndroidDevice._picture(Phone(), path.read_bytes(), 0)


def through_the_inspector(path):
    table = TrackTable(session_tracks([Session("s", [Episode("e", "Look.", [Step(0., Observation(str(path)), Action("done"))])])]))
    data = table.screen(0)
    if not data: raise ValueError("not shown")
    assert tuple(table.rows[0]["size"]) == (W, H)
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def through_an_export(path):
    datasets = pytest.importorskip("datasets", reason="pip install 'oaml[hf]'")
    from oaml.datasets.hf import export_hf
    home = path.parent/f"export-{path.name}"
    (home/"data"/"screens").mkdir(parents=True)
    shutil.copy(path, home/"data"/"screens"/path.name)
    steps = [Step(0., Observation(str(home/"data"/"screens"/path.name)), Action("done"))]
    save_sessions([Session("s", [Episode("e", "Look.", steps)])], home/"data")
    export_hf(home/"data", home/"out")
    image = datasets.load_dataset(str(home/"out"), split="train", cache_dir=str(home/"cache"))[0]["images"][0]
    assert image.mode in ("RGB", "P", "L"), "left to the reader"
    return np.asarray(image.convert("RGB"))


DOORS = dict(observation=lambda p: np.asarray(Observation(str(p)).image()), sample=lambda p: load_image(p), opened=lambda p: load_image(Image.open(p)),
             icon=read_picture, rft=through_rft, rft_line=through_rft_line, serve_model=through_the_server, inspector=through_the_inspector,
             export=through_an_export, adb=through_adb)


@pytest.mark.parametrize("door", DOORS)
def test_every_door_reads_a_file_alike(folder, door):
    wrong = []
    for name, (data, want, near) in FILES.items():
        if door == "adb" and not name.endswith(".png"): continue
        if door == "opened" and name in ("deep.png", "bomb.png", "cut.png", "broken.png", "cut.jpg"): continue  # Pillow's own, before we are asked
        try: got = DOORS[door](folder/name)
        except (ValueError, OSError, DeviceError) as e:
            if not isinstance(want, str): wrong.append(f"{name}: {e}")
            elif door != "inspector" and want not in str(e): wrong.append(f"{name}: refused, but says {e}")
            continue
        if isinstance(want, str): wrong.append(f"{name}: is not refused")
        elif got.shape != want.shape: wrong.append(f"{name}: has shape {got.shape}")
        elif (off := int(np.abs(got.astype(int) - want).max())) > near: wrong.append(f"{name}: is off by {off}")
    assert not wrong, "\n".join(wrong)


def test_a_browser_shows_what_python_reads(folder):
    "The canvas of a saved page, pixel by pixel; where Python refuses a file, the page has no screen."
    pytest.importorskip("playwright", reason="Playwright drives the browser: pip install playwright")
    from lab import browser, chromium_path
    if chromium_path() is None: pytest.skip("no chromium, chromium-browser or google-chrome on the path")
    from oaml.viz.page import save_page
    names = [name for name in FILES if name != "bomb.png"]  # its size alone would take the page minutes
    steps = [Step(float(k), Observation(str(folder/name)), Action("wait")) for k, name in enumerate(names)]
    page_file = save_page(TrackTable(session_tracks([Session("s", [Episode("e", "Look.", steps)])])), folder/"page.html")[0]
    wrong = []
    with browser() as chromium:
        page = chromium.new_page()
        page.goto(page_file.as_uri())
        page.locator(".oaml[data-drawn]").wait_for(timeout=60_000)
        for k, name in enumerate(names):
            page.evaluate(f"location.hash = 'step={k}'")
            want, refused = FILES[name][1], isinstance(FILES[name][1], str)
            page.locator(f'.oaml[data-drawn="{k}"]').wait_for(timeout=60_000)
            page.wait_for_timeout(150)
            gone = page.locator(".veil").first.inner_text()
            if refused:
                if not gone: wrong.append(f"{name}: is shown")
                continue
            width, height, values = page.locator(".stage canvas").first.evaluate(
                "c => [c.width, c.height, Array.from(c.getContext('2d').getImageData(0, 0, c.width, c.height).data)]")
            got = np.array(values, np.uint8).reshape(height, width, 4)[..., :3]
            read = np.asarray(Observation(str(folder/name)).image())
            if gone or got.shape != want.shape: wrong.append(f"{name}: {gone or got.shape}")
            elif (off := int(np.abs(got.astype(int) - read).max())) > (2 if name == "plain.jpg" else 0): wrong.append(f"{name}: is off by {off}")
    assert not wrong, "\n".join(wrong)


def test_a_screen_that_was_recorded_upright_keeps_its_hash(tmp_path):
    "Manifests hold hashes of pixels: an ordinary PNG is read as it always was."
    from oaml.devices.device import Frame
    Image.fromarray(drawn()).save(tmp_path/"a.png")
    assert Frame(np.asarray(Observation(str(tmp_path/"a.png")).image())).screen_hash() == Frame(drawn()).screen_hash()
    assert json.loads(json.dumps(load_image(tmp_path/"a.png")[0, 0].tolist())) == [200, 40, 40]
