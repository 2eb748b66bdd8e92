// ---- Words that differ ----
// For each list of words, which of them are not in their longest common subsequence.
function differences(left, right) {
  const length = Array.from({length: left.length + 1}, () => new Uint16Array(right.length + 1));
  for (let i = left.length - 1; i >= 0; --i) {
    for (let j = right.length - 1; j >= 0; --j) {
      length[i][j] = left[i] === right[j] ? length[i + 1][j + 1] + 1 : Math.max(length[i + 1][j], length[i][j + 1]);
    }
  }
  const odd = [left.map(() => true), right.map(() => true)];
  for (let i = 0, j = 0; i < left.length && j < right.length;) {
    if (left[i] === right[j]) odd[0][i++] = odd[1][j++] = false;
    else if (length[i + 1][j] >= length[i][j + 1]) ++i;
    else ++j;
  }
  return odd;
}

const words = (text) => text.match(/\S+/g) ?? [];
const MOST_WORDS = 1000;  // that are compared: the table of differences() is their square
